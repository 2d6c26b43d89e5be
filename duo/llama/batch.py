"""Batch: the tokens of one decode."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp

from duo.llama.handle import Handle


class Batch:
    """A llama_batch of fixed capacity, filled through arrays of its memory: of ctypes, fastest for one token."""

    def __init__(self, context: Handle, capacity: int) -> None:
        batch = llama_cpp.llama_batch_init(capacity, 0, 1)
        self._handle = Handle(batch, llama_cpp.llama_batch_free, parent=context)
        self._batch = batch
        self._tokens, self._positions, self._outputs = (
            (type(field.contents) * capacity).from_address(ctypes.addressof(field.contents))
            for field in (batch.token, batch.pos, batch.logits)
        )
        for i in range(capacity):
            batch.n_seq_id[i] = 1
        self._n_each = capacity  # entries that may be of other sequences than 0

    def _set_sequences(self, sequences: Sequence[int]) -> None:
        for i, sequence in enumerate(sequences):
            self._batch.seq_id[i][0] = sequence

    def fill(self, tokens: Sequence[int], n_past: int, n_outputs: int) -> Any:
        """The llama_batch for `tokens` from position `n_past` on, with logits after the last `n_outputs`."""
        n = len(tokens)
        if self._n_each:
            self._set_sequences([0] * self._n_each)
            self._n_each = 0
        self._batch.n_tokens = n
        if n == 1:
            self._tokens[0], self._positions[0], self._outputs[0] = tokens[0], n_past, n_outputs
            return self._batch
        self._tokens[:n] = tokens
        self._positions[:n] = range(n_past, n_past + n)
        self._outputs[:n] = bytes(n - n_outputs) + b"\1" * n_outputs
        return self._batch

    def fill_each(self, entries: Sequence[tuple[int, int, int]]) -> Any:
        """The llama_batch of `entries` (token, position, sequence), with logits after each."""
        self._batch.n_tokens = n = len(entries)
        self._n_each = max(self._n_each, n)
        tokens, positions, sequences = zip(*entries, strict=True)
        self._tokens[:n], self._positions[:n], self._outputs[:n] = tokens, positions, b"\1" * n
        self._set_sequences(sequences)
        return self._batch
