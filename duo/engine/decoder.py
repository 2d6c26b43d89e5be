"""Decoder: the interface of duo.llama.Context that the engine uses."""

# ruff: noqa: D102 - duo/llama/context.py describes the methods of a Decoder
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from duo.config.model_config import ROWS
from duo.errors import RollbackError
from duo.speculation.types import Logits

SavedState = Any  # of the context's: what it takes back, with its size as `nbytes`


class Decoder(Protocol):
    """A model with a KV cache, whose methods are those of duo.llama.Context.

    One thread at a time calls it, except cancel() and abort(). Sequences 1 to `n_branches` are beside the text, which
    is sequence 0. `n_rollback`: tokens of the last batch that can be rolled back, once; None: all, at any time.
    """

    n_ctx: int
    n_batch: int
    n_vocab: int
    n_rollback: int | None
    n_branches: int

    @property
    def was_first(self) -> bool: ...
    @property
    def n_past(self) -> int: ...
    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits: ...
    def rollback(self, n_past: int) -> None: ...
    def branch(self, sequence: int, n_past: int) -> None: ...
    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits: ...
    def adopt(self, sequence: int) -> None: ...
    def drop(self, sequence: int) -> None: ...
    def cancel(self) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...
    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...


class Alternating(Decoder, Protocol):
    """A decoder that can decode alternatives to candidates beside these."""

    def decode_with(self, tokens: Sequence[int], alternatives: Sequence[tuple[int, int]]) -> Logits: ...
    def settle(self, n_past: int, came_true: int = -1) -> None: ...


class Shared(Decoder, Protocol):
    """A decoder whose cache holds `n_texts` texts, in `n_cells` cells: see duo.llama.Context."""

    n_texts: int
    n_cells: int
    flash_attn: str

    def branch(self, sequence: int, n_past: int, of: int = 0) -> None: ...
    def alone(self, sequence: int) -> AbstractContextManager[None]: ...
    def text(self, sequence: int) -> Any: ...
    def reset(self) -> None: ...
    def decode_parts(self, parts: Sequence[tuple[int, Sequence[int], int]]) -> list[Logits]: ...


@runtime_checkable
class Savable(Protocol):
    """A decoder that can copy what its cache holds, if `can_save`; whole texts only if it `is_windowed`."""

    can_save: bool
    is_windowed: bool

    @property
    def n_state_bytes(self) -> int: ...

    def save(self) -> SavedState: ...
    def load(self, state: SavedState) -> bool: ...


def return_to(decoder: Decoder, tokens: Sequence[int]) -> None:
    """Restore a cache that begins with `tokens` to just these, decoding them again if it cannot be rolled back."""
    try:
        decoder.rollback(len(tokens))
    except RollbackError:
        decoder.rollback(0)
        decode_all(decoder, tokens)


def decode_all(decoder: Decoder, tokens: Sequence[int], n_rows: int = 1) -> Logits:
    """Logits `[n_rows, n_vocab]` after the last of these tokens; fewer rows if the last batch is smaller."""
    while len(tokens) > (n := decoder.n_batch):
        decoder.decode(tokens[:n], n_rows=0)
        tokens = tokens[n:]
    return decoder.decode(tokens, min(n_rows, len(tokens)))


def score_size(decoder: Decoder) -> int:
    """Tokens of a batch that returns a row for each."""
    return min(decoder.n_batch, ROWS)
