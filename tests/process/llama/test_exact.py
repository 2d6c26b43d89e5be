"""What --exact promises, for tiny models of every quantisation for which it does (of real ones: tests/proof)."""

import random
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.llama.context import Context
from duo.llama.library import quantize
from duo.llama.model import Model
from duo.speculation.types import Logits
from tests.gguf_files import tiny_llama

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama.h, enum llama_ftype
TEXT = random.Random(3).choices(range(3, 270), k=540)


def assert_bit_equal(model: Model, text: Sequence[int], n_past: int) -> None:
    """The logits of the 9 tokens after the first `n_past` do not depend on the batches or the number of threads."""
    found: dict[tuple[int, tuple[int, ...]], Logits] = {}

    def decode(n_threads: int) -> None:
        with closing(Context(model, ContextConfig(n_past + 9, n_threads, n_threads, exact=True))) as context:
            for start in range(0, n_past, 512):
                context.decode(text[start : min(start + 512, n_past)], n_rows=0)
            for sizes in ((9,), (1,) * 9, (2, 1, 5, 1), (4, 5), (1, 8)):
                rows = [context.decode(text[context.n_past :][:n], n_rows=n).copy() for n in sizes]
                found[n_threads, sizes] = np.concatenate(rows)
                context.rollback(n_past)

    for n_threads in (1, 2):  # a thread that decodes with several threads keeps a team of them until it ends
        thread = threading.Thread(target=decode, args=(n_threads,))
        thread.start()
        thread.join()
    assert len(found) == 10
    assert [which for which, logits in found.items() if not (logits == found[1, (9,)]).all()] == []


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_logits_are_bit_equal_for_any_batch_size_and_thread_count(tmp_path: Path, file_type: str) -> None:
    path = tmp_path / "model.gguf"
    quantize(tiny_llama(tmp_path / "source.gguf"), path, FILE_TYPES[file_type])
    with closing(Model(ModelConfig(path))) as model:
        for n_past in (1, 520):  # from 512 cells on, llama.cpp splits the attention of a single row by thread count
            assert_bit_equal(model, TEXT, n_past)
