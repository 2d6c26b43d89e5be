"""Logits of the same tokens in batches of different sizes, with one thread and with two."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from duo.config import ContextConfig
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.types import Logits

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama.h, enum llama_ftype
SIZES = ((9,), (1,) * 9, (2, 1, 5, 1), (4, 5), (1, 8))


def logits_by_batches(model: Model, text: Sequence[int], n_past: int) -> dict[tuple[int, tuple[int, ...]], Logits]:
    """The logits of the 9 tokens after the first `n_past`, by number of threads and sizes of batches; with `exact`."""
    found: dict[tuple[int, tuple[int, ...]], Logits] = {}

    def decode(n_threads: int) -> None:
        with closing(Context(model, ContextConfig(n_past + 9, n_threads, n_threads, exact=True))) as context:
            for start in range(0, n_past, 512):
                context.decode(text[start : min(start + 512, n_past)], n_rows=0)
            for sizes in SIZES:
                found[n_threads, sizes] = np.concatenate(list(_rows(context, text, sizes)))
                context.rollback(n_past)

    for n_threads in (1, 2):  # a thread that decodes with several threads keeps a team of them until it ends
        thread = threading.Thread(target=decode, args=(n_threads,))
        thread.start()
        thread.join()
    return found


def _rows(context: Context, text: Sequence[int], sizes: Sequence[int]) -> Iterator[Logits]:
    for size in sizes:
        yield context.decode(text[context.n_past : context.n_past + size], n_rows=size).copy()


def differing(found: dict[tuple[int, tuple[int, ...]], Logits]) -> list[tuple[int, tuple[int, ...]]]:
    """Those that are not bit-equal to a single batch on one thread."""
    expected = found[1, (9,)]
    return [which for which, logits in found.items() if not (logits == expected).all()]
