"""Prompts that cannot be continued: one line that says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.llama.model import Model
from tests.command import Run, assert_refused, duo
from tests.gguf_files import N_CTX_TRAIN


def test_an_empty_prompt(tmp_path: Path) -> None:
    assert_refused(duo("-m", "missing.gguf", "-p", ""), "the prompt is empty")
    assert_refused(duo("-m", "missing.gguf", "-f", "-"), "standard input is empty")
    assert_refused(duo("-m", "missing.gguf", "-f", "-", stdin=b"\n"), "standard input is empty")
    for content in ("", "\n"):
        path = tmp_path / "prompt.txt"
        path.write_text(content)
        assert_refused(duo("-m", "missing.gguf", "-f", path), f"{path} is empty")


def test_no_such_file_and_a_directory(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    assert_refused(duo("-m", "missing.gguf", "-f", missing), f"{missing}: no such file")
    assert_refused(duo("-m", "missing.gguf", "-f", tmp_path), f"{tmp_path}: Is a directory")


@pytest.mark.parametrize("escape", ["--escape", "--no-escape"])
def test_what_is_no_utf_8(tmp_path: Path, escape: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"one\\n two \xff")
    said = "is not valid UTF-8: byte 0xff at offset"
    assert_refused(duo("-m", "missing.gguf", "-f", path, escape), f"{path} {said} 10")
    assert_refused(duo("-m", "missing.gguf", "-f", "-", escape, stdin=b"\xff"), f"standard input {said} 0")
    assert_refused(duo("-m", "missing.gguf", "-p", b"two \xff", escape), f"the prompt {said} 4")
    assert_refused(duo("-m", "missing.gguf", "-p", "x", "-r", b"\xff", escape), f"-r {said} 0")


def test_a_system_prompt_that_is_no_utf_8(demo_pair: tuple[Path, Path]) -> None:
    run = duo("-m", demo_pair[0], "-p", "x", "-sys", b"\xff")
    assert_refused(run, "-sys is not valid UTF-8: byte 0xff at offset 0")


def test_an_escape_that_is_no_utf_8() -> None:
    assert_refused(duo("-m", "missing.gguf", "-p", r"\xff"), "the prompt is not valid UTF-8")


def test_no_chat_template(tiny: Path) -> None:
    assert_refused(duo("-m", tiny, "-p", "x", "--chat"), "tiny.gguf has no chat template")


def _sizes(run: Run) -> list[int]:
    """Both numbers of the refusal: the prompt's tokens and the context's."""
    assert_refused(run)
    found = re.search(r"the prompt has (\d+) tokens, the context (\d+) ", run.stderr)
    assert found is not None, run.stderr
    return [int(number) for number in found.groups()]


@pytest.mark.parametrize("n_predict", ["-1", "8"])
def test_a_prompt_longer_than_the_context(tiny: Path, n_predict: str) -> None:
    prompt = "the cat sat " * 60
    model = Model(ModelConfig(tiny))
    n_tokens = len(model.tokenize(prompt))
    model.close()
    arguments = ("-m", tiny, "-p", prompt, "-n", n_predict)

    small = duo(*arguments, "-c", "20")
    assert _sizes(small) == [n_tokens, 20]
    assert "(-c)" in small.stderr

    trained = duo(*arguments)
    assert _sizes(trained) == [n_tokens, N_CTX_TRAIN]
    assert "trained" in trained.stderr


def test_a_prompt_as_long_as_the_context(tiny: Path) -> None:
    prompt = "the cat sat " * 40
    n_tokens, _ = _sizes(duo("-m", tiny, "-p", prompt, "-c", "20"))
    run = duo("-m", tiny, "-p", prompt, "-n", "0", "-c", str(n_tokens), "-t", "1")
    assert (run.status, run.n_tokens) == (0, 0)
    assert _sizes(duo("-m", tiny, "-p", prompt, "-n", "0", "-c", str(n_tokens - 1))) == [n_tokens, n_tokens - 1]
