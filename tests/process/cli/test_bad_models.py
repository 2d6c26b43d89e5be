"""GGUF files on which llama.cpp would abort: one line and status 1, as target and as draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import assert_refused, duo, models
from tests.gguf_files import tiny_llama
from tests.gguf_head import Head


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "good.gguf")


@pytest.mark.parametrize("n_layer", [0, 2**31, 2**32 - 1])
def test_a_number_of_layers_that_no_model_has(good: Path, tmp_path: Path, n_layer: int) -> None:
    bad = Head.read(good).set("llama.block_count", n_layer).write(tmp_path / "bad.gguf")
    said = f"{bad}: llama.block_count is {n_layer}, but must be 1 to 512"
    for chosen in (models(bad), models(good, bad)):
        assert_refused(duo(*chosen, "-p", "x", "-n", "4"), said)


def test_an_assertion_while_llama_cpp_loads_the_file(good: Path, tmp_path: Path) -> None:
    head = Head.read(good)
    tokens = next(key.value for key in head.keys if key.name == b"tokenizer.ggml.tokens")
    tokens[-1] = tokens[-2]
    bad = head.write(tmp_path / "bad.gguf")
    for chosen in (models(bad), models(good, bad)):
        assert_refused(duo(*chosen, "-p", "x", "-n", "4"), f"{bad}: the file is damaged", "id_to_token.size()")
