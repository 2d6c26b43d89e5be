"""What the engine needs of a context: duo.llama.Context in earnest, a fake in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duo.errors import RollbackError
from duo.spec.types import Logits


class Decoder(Protocol):
    """A model with a KV cache. One thread at a time calls it, cancel() and abort() excepted."""

    n_ctx: int
    n_batch: int
    n_vocab: int
    n_rollback: int | None  # most tokens of a batch that can be taken back, once; None: any number of all

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        ...

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """Decode `tokens` after the `n_past` before them; logits `[n_rows, n_vocab]` after the last ones."""
        ...

    def rollback(self, n_past: int) -> None:
        """Forget everything from position `n_past` on. Raises RollbackError if it cannot."""
        ...

    def cancel(self) -> None:
        """Make the present decode, if there is one, raise DecodeAborted."""
        ...

    def abort(self) -> None:
        """Make the present decode, and every later one, raise DecodeAborted."""
        ...

    def resume(self) -> None:
        """Take back an abort()."""
        ...

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the threads for single tokens and for batches, from the next decode on."""
        ...


def return_to(decoder: Decoder, tokens: Sequence[int]) -> None:
    """Leave just `tokens` in the cache, which begins with them; they are read again if it cannot be rolled back so far.

    Raises whatever the decode raises.
    """
    try:
        decoder.rollback(len(tokens))
    except RollbackError:
        decoder.rollback(0)
        decode_all(decoder, tokens)


def decode_all(decoder: Decoder, tokens: Sequence[int]) -> Logits:
    """Decode one token or more in batches of at most `n_batch`; logits `[1, n_vocab]` after the last.

    Raises whatever the decode raises.
    """
    while len(tokens) > (n := decoder.n_batch):
        decoder.decode(tokens[:n], n_rows=0)
        tokens = tokens[n:]
    return decoder.decode(tokens)
