"""What --exact promises, for a real model in every quantisation for which it does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.llama.library import quantize
from duo.llama.model import Model
from tests.process.llama.test_exact import FILE_TYPES, assert_bit_equal

TEXT = "Once upon a time there was a lighthouse keeper who had never seen the sea, because the fog never lifted. "


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_logits_are_bit_equal_for_any_batch_size_and_thread_count(
    demo_pair: tuple[Path, Path], tmp_path: Path, file_type: str
) -> None:
    path = tmp_path / "model.gguf"
    quantize(demo_pair[0], path, FILE_TYPES[file_type])
    with closing(Model(ModelConfig(path))) as model:
        tokens = model.tokenize(30 * TEXT)
        # From 512 cells on, llama.cpp splits the attention of a single row by thread count.
        for n_past in (1, 520):
            assert_bit_equal(model, tokens, n_past)
    path.unlink()
