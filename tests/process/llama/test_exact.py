"""What --exact promises, for every quantisation that it promises it for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.quantize import quantize
from duo.spec.types import Logits

TEXT = "Once upon a time there was a lighthouse keeper who had never seen the sea, because the fog never lifted. "
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama.h, enum llama_ftype


@pytest.fixture(scope="module", params=FILE_TYPES)
def model(
    request: pytest.FixtureRequest, demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    quantize(demo_pair[0], path, FILE_TYPES[request.param])
    loaded = Model(ModelConfig(path))
    yield loaded
    loaded.close()
    path.unlink()


def on_own_thread(work: Callable[[], Logits]) -> Logits:
    """Each thread that decodes with several threads keeps a team of them; this one's ends with it."""
    results: list[Logits] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("n_past", [1, 520])
def test_logits_are_bit_equal_whatever_the_batch_and_threads(model: Model, n_past: int) -> None:
    """520: llama.cpp splits the attention of a single row by thread count from 512 cells on."""
    text = (model.tokenize(TEXT) * n_past)[: n_past + 9]

    def logits(n_threads: int, sizes: list[int]) -> Logits:
        context = Context(model, ContextConfig(600, n_threads, n_threads, exact=True))
        context.decode(text[:n_past], n_rows=0) if n_past <= 512 else [
            context.decode(text[:512], n_rows=0),
            context.decode(text[512:n_past], n_rows=0),
        ]
        rows, at = [], n_past
        for size in sizes:
            rows.append(context.decode(text[at : at + size], n_rows=size).copy())
            at += size
        context.close()
        return np.concatenate(rows)

    expected = logits(1, [9])
    for sizes in ([1] * 9, [2, 1, 5, 1], [4, 5], [1, 8]):
        assert (logits(1, sizes) == expected).all(), f"batches of {sizes}"
    mixed = on_own_thread(lambda: logits(2, [1, 2, 1, 5]))
    assert (mixed == expected).all(), "two threads"
