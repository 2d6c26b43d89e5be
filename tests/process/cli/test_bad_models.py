"""GGUF files on which llama.cpp would abort: one line and status 1, as target and as draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import assert_refused, duo, models
from tests.gguf_files import tiny_llama
from tests.gguf_head import Head


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.block_count", 0, ("the file is damaged", "n_layer")),
        ("llama.block_count", 2**32 - 1, ("the file is damaged", "n_layer")),
        ("tokenizer.ggml.tokens", None, ("the file is damaged", "id_to_token.size()")),  # an assertion of llama.cpp's
    ],
)
def test_a_file_on_which_llama_cpp_would_abort(tmp_path: Path, key: str, value: object, said: tuple[str, ...]) -> None:
    good = tiny_llama(tmp_path / "good.gguf")
    head = Head.read(good)
    if value is None:  # two tokens that are the same
        tokens = next(each.value for each in head.keys if each.name == key.encode())
        value = [*tokens[:-1], tokens[-2]]
    bad = head.set(key, value).write(tmp_path / "bad.gguf")
    for chosen in (models(bad), models(good, bad)):
        assert_refused(duo(*chosen, "-p", "x", "-n", "4"), f"{bad}: ", *said)
