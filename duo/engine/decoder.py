"""What the engine needs of a context: duo.llama.Context in earnest, a fake in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duo.spec.types import Logits


class Decoder(Protocol):
    """A model with a KV cache. One thread at a time calls it, cancel() and abort() excepted."""

    n_ctx: int
    n_batch: int
    n_vocab: int

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        ...

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """Decode `tokens` after the `n_past` before them; logits `[n_rows, n_vocab]` after the last ones."""
        ...

    def rollback(self, n_past: int) -> None:
        """Forget everything from position `n_past` on."""
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


def decode_all(decoder: Decoder, tokens: Sequence[int]) -> Logits:
    """Decode one token or more in batches of at most `n_batch`; logits `[1, n_vocab]` after the last.

    Raises whatever the decode raises.
    """
    last = (len(tokens) - 1) // decoder.n_batch * decoder.n_batch
    for start in range(0, last, decoder.n_batch):
        decoder.decode(tokens[start : start + decoder.n_batch], n_rows=0)
    return decoder.decode(tokens[last:])
