"""Models that cannot be loaded, and drafts that do not fit the target: one line that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, assert_refused, models
from tests.gguf_files import WORDS, tiny_llama
from tests.unit.cli.runner import duo


def refused(target: Argument, *said: str, draft: Path | None = None, more: tuple[str, ...] = ()) -> None:
    drafted: tuple[Argument, ...] = ("-md", draft) if draft else ()
    assert_refused(duo("-m", target, *drafted, "-p", "x", *more), *said)


def test_a_path_that_is_no_model_and_a_context_larger_than_the_memory(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "zip").write_bytes(b"PK\3\4 a zip")
    (tmp_path / "cut").write_bytes(tiny.read_bytes()[:6000])
    for path, said in (
        (tmp_path / ":smile: [b]x[/b].gguf", "no such file"),  # printed verbatim
        (tmp_path, "a directory"),
        (tmp_path / "zip" / "model.gguf", "Not a directory"),
        (tmp_path / "zip", "not a GGUF file"),
        (tmp_path / "cut", "the file is truncated or damaged"),
    ):
        refused(path, f"{path}: {said}")
        refused(tiny, f"{path}: {said}", draft=path)
    refused(b"\xff.gguf", "no such file")
    path = tiny_llama(tmp_path / "model.gguf", tensors=False)
    refused(path, str(path), "llama.cpp cannot load it", "token_embd.weight")
    n_ctx = str(2**31 - 1)
    refused(tiny, f"a context of {n_ctx} tokens needs", "GiB are available", "-c", more=("-c", n_ctx))


def test_split_models(tiny: Path, tmp_path: Path) -> None:
    first = tiny_llama(tmp_path / "split.gguf", max_tensors=4)
    second, third = (first.with_name(f"split-0000{i}-of-00003.gguf") for i in (2, 3))
    text = ("-p", "the cat", "-n", "8", "-t", "1")
    assert duo("-m", first, *text).stdout == duo("-m", tiny, *text).stdout != b""
    refused(second, f"{second}: name the first file of a split model")
    third.unlink()
    refused(first, f"{third}: no such file")


@pytest.mark.usefixtures("slow_target")  # so that the draft is asked
def test_a_draft_with_another_vocabulary(tiny: Path, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "draft.gguf", words=(WORDS[0], "▁lion", *WORDS[2:]))
    text = ("-p", "the cat", "-n", "16", "--exact", "--schedule", "sync", *ONE_EACH)
    plain, drafted = duo("-m", tiny, *text), duo(*models(tiny, path), *text)
    assert (drafted.status, drafted.stdout) == (0, plain.stdout)
    for said in (
        "draft.gguf drafts for tiny.gguf through the text: token 260 is '▁cat' to the target and '▁lion' to",
        "is accepted more often (`duo list` shows which models share one).",
        "; vocabulary translated, ",
    ):
        assert said in drafted.stderr
