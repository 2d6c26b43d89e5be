"""Decoder: the interface of duo.llama.Context that the engine uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duo.errors import RollbackError
from duo.spec.types import Logits


class Decoder(Protocol):
    """A model with a KV cache. One thread at a time calls it, except cancel() and abort()."""

    n_ctx: int
    n_batch: int
    n_vocab: int
    n_rollback: int | None  # tokens of the last batch that can be rolled back, once; None: all tokens, at any time
    n_branches: int  # sequences 1 to n_branches, besides the text itself, which is sequence 0

    @property
    def was_first(self) -> bool:
        """Whether the time of the last decode is not representative: see duo.llama.Context."""

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """Append `tokens` to the cache; returns logits `[n_rows, n_vocab]` after the last `n_rows` of them.

        Raises DecodeError, or DecodeAborted after cancel() or abort().
        """

    def rollback(self, n_past: int) -> None:
        """Remove everything from position `n_past` on. Raises RollbackError if that is impossible."""

    def branch(self, sequence: int, n_past: int) -> None:
        """Make `sequence` the first `n_past` tokens of sequence 0."""

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        """Append a token to each sequence, given as (sequence, token); returns logits `[n, n_vocab]` in this order.

        Raises what decode() raises.
        """

    def adopt(self, sequence: int) -> None:
        """Make sequence 0 what `sequence` is, which becomes empty."""

    def drop(self, sequence: int) -> None:
        """Forget `sequence`."""

    def cancel(self) -> None:
        """Make the current decode, if any, raise DecodeAborted."""

    def abort(self) -> None:
        """Make the current and every later decode raise DecodeAborted."""

    def resume(self) -> None:
        """Undo abort()."""

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the threads for single tokens and for batches, from the next decode on."""


def return_to(decoder: Decoder, tokens: Sequence[int]) -> None:
    """Restore a cache that begins with `tokens` to just these, decoding them again if it cannot be rolled back.

    Raises what the decode raises.
    """
    try:
        decoder.rollback(len(tokens))
    except RollbackError:
        decoder.rollback(0)
        decode_all(decoder, tokens)


def decode_all(decoder: Decoder, tokens: Sequence[int], n_rows: int = 1) -> Logits:
    """Decode one or more tokens in batches of at most `n_batch`.

    Returns logits `[n_rows, n_vocab]` after the last; fewer rows if the last batch is smaller. Raises what the decode
    raises.
    """
    while len(tokens) > (n := decoder.n_batch):
        decoder.decode(tokens[:n], n_rows=0)
        tokens = tokens[n:]
    return decoder.decode(tokens, min(n_rows, len(tokens)))
