"""What --exact promises, for tiny models of every quantisation for which it does (of real ones: tests/proof)."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.llama.library import quantize
from duo.llama.model import Model
from tests.gguf_files import tiny_llama
from tests.process.llama.batches import FILE_TYPES, differing, logits_by_batches

TEXT = random.Random(3).choices(range(3, 270), k=500)


@pytest.mark.parametrize("file_type", FILE_TYPES)
@pytest.mark.parametrize("n_past", [1, 480])
def test_logits_are_bit_equal_for_any_batch_size_and_thread_count(tmp_path: Path, file_type: str, n_past: int) -> None:
    path = tmp_path / "model.gguf"
    quantize(tiny_llama(tmp_path / "source.gguf"), path, FILE_TYPES[file_type])
    with closing(Model(ModelConfig(path))) as model:
        assert differing(logits_by_batches(model, TEXT, n_past)) == []
