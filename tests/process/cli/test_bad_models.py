"""Models that cannot be run: one line that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import assert_refused, duo
from tests.gguf_files import WORDS, tiny_llama


@pytest.mark.parametrize("option", ["-m", "-md"])
def test_no_such_file(tiny: Path, tmp_path: Path, option: str) -> None:
    missing = tmp_path / "missing.gguf"
    assert_refused(duo("-m", tiny, option, missing, "-p", "x"), f"{missing}: no such file")


def test_a_name_is_shown_as_it_is(tmp_path: Path) -> None:
    assert_refused(duo("-m", ":smile: [b]x[/b].gguf", "-p", "x"), ":smile: [b]x[/b].gguf: no such file")


def test_a_name_that_is_no_unicode(tmp_path: Path) -> None:
    assert_refused(duo("-m", b"\xff.gguf", "-p", "x"), "no such file")


@pytest.mark.parametrize("option", ["-m", "-md"])
def test_a_directory(tiny: Path, tmp_path: Path, option: str) -> None:
    assert_refused(duo("-m", tiny, option, tmp_path, "-p", "x"), f"{tmp_path}: a directory, not a GGUF file")


@pytest.mark.parametrize(("content", "said"), [(b"PK\3\4", "not a GGUF file"), (b"", "an empty file")])
def test_another_kind_of_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert_refused(duo("-m", path, "-p", "x"), f"{path}: {said}")


@pytest.mark.parametrize("n_bytes", [4, 10, 100, 2000, 6000, -1])
def test_a_truncated_file(tiny: Path, tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny.read_bytes()[:n_bytes])
    assert_refused(duo("-m", path, "-p", "x"), f"{path}: the file is truncated or damaged")


@pytest.mark.parametrize("n_bytes", [1_000_000, 80_000_000])
def test_a_truncated_real_file(demo_pair: tuple[Path, Path], tmp_path: Path, n_bytes: int) -> None:
    path = tmp_path / "model.gguf"
    with demo_pair[1].open("rb") as whole:
        path.write_bytes(whole.read(n_bytes))
    assert_refused(duo("-m", demo_pair[0], "-md", path, "-p", "x"), f"{path}: the file is truncated or damaged")


def test_a_model_without_vocabulary(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", vocabulary=False)
    assert_refused(duo("-m", path, "-p", "x"), f"{path}: this GGUF has no vocabulary")


def test_a_vocabulary_without_weights(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", tensors=False)
    assert_refused(duo("-m", path, "-p", "x"), f"{path}: llama.cpp cannot load it", "token_embd.weight")


@pytest.mark.parametrize("n_ctx", [10**9, 2**32 + 1])
def test_a_context_that_does_not_fit_the_memory(demo_pair: tuple[Path, Path], n_ctx: int) -> None:
    run = duo("-m", demo_pair[0], "-p", "x", "-c", str(n_ctx))
    assert_refused(run, f"a context of {n_ctx} tokens needs", "GiB are available", "-c")


# Split models


def test_a_split_model_is_loaded_by_its_first_part(tiny: Path, tmp_path: Path) -> None:
    first = tiny_llama(tmp_path / "split.gguf", max_tensors=4)
    assert first.name == "split-00001-of-00003.gguf"
    arguments = ("-p", "the cat", "-n", "8", "-t", "1")
    assert duo("-m", first, *arguments).stdout == duo("-m", tiny, *arguments).stdout != b""


def test_another_part_of_a_split_model(tmp_path: Path) -> None:
    first = tiny_llama(tmp_path / "split.gguf", max_tensors=4)
    second = first.with_name("split-00002-of-00003.gguf")
    assert_refused(duo("-m", second, "-p", "x"), f"{second}: name the first file of a split model")


def test_a_split_model_with_a_part_missing(tmp_path: Path) -> None:
    first = tiny_llama(tmp_path / "split.gguf", max_tensors=4)
    third = first.with_name("split-00003-of-00003.gguf")
    third.unlink()
    assert_refused(duo("-m", first, "-p", "x"), f"{third}: no such file")


# Drafts that do not fit


def test_a_draft_with_another_word(tiny: Path, tmp_path: Path) -> None:
    draft = tiny_llama(tmp_path / "draft.gguf", words=(WORDS[0], "▁lion", *WORDS[2:]))
    run = duo("-m", tiny, "-md", draft, "-p", "x")
    assert_refused(run, "draft.gguf cannot draft for tiny.gguf: token 260 is '▁cat' to the target and '▁lion' to")


def test_a_draft_that_begins_otherwise(tiny: Path, tmp_path: Path) -> None:
    draft = tiny_llama(tmp_path / "draft.gguf", add_bos=True)
    run = duo("-m", tiny, "-md", draft, "-p", "x")
    assert_refused(run, "the target's BOS is not added, the draft's token 1")


def test_a_draft_with_many_more_tokens(tiny: Path, tmp_path: Path) -> None:
    draft = tiny_llama(tmp_path / "draft.gguf", padding=129)
    run = duo("-m", tiny, "-md", draft, "-p", "x")
    assert_refused(run, "the target's vocabulary has 275 tokens, the draft's 404")


def test_a_draft_with_another_kind_of_vocabulary(tiny: Path, demo_pair: tuple[Path, Path]) -> None:
    assert_refused(duo("-m", demo_pair[0], "-md", tiny, "-p", "x"), "vocabulary is of type")


@pytest.mark.parametrize("padding", [1, 128])
@pytest.mark.parametrize("padded_draft", [True, False])
def test_a_padded_vocabulary_fits(tiny: Path, tmp_path: Path, padding: int, padded_draft: bool) -> None:
    padded = tiny_llama(tmp_path / "padded.gguf", padding=padding)
    target, draft = (tiny, padded) if padded_draft else (padded, tiny)
    arguments = ("-p", "the cat", "-n", "32", "--ignore-eos", "--exact", "-t", "1")
    plain, drafted = duo("-m", target, *arguments), duo("-m", target, "-md", draft, "-td", "1", *arguments)
    assert (drafted.status, drafted.n_tokens) == (0, 32)
    assert drafted.stdout == plain.stdout
