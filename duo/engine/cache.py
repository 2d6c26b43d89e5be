"""Cache: a context whose KV cache is reused by the next text with the same beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duo.config import LARGE_BATCH
from duo.engine.decoder import Decoder
from duo.errors import RollbackError
from duo.spec.types import common_prefix


@dataclass(slots=True)
class Cache:
    """A context, and the tokens in its KV cache."""

    context: Decoder
    exact: bool = False  # keep only what a new context would read in batches of the same kind: see kept_exactly()
    _tokens: Sequence[int] = ()
    _n_large: int = 0  # of them were read in large batches, if `exact`

    def begin(self, text: Sequence[int]) -> int:
        """Keep the longest common prefix with `text`, without its last token, and return its length.

        Clears the cache if it cannot be rolled back that far. Raises RollbackError if even that fails.
        """
        n = common_prefix(self._tokens[: self.context.n_past], text[:-1])
        if self.exact:
            n = kept_exactly(n, self._n_large, len(text), self.context.n_batch)
            self._n_large = n_read_in_large_batches(len(text), self.context.n_batch)
        self._tokens = ()
        try:
            self.context.rollback(n)
        except RollbackError:
            n = 0
            self.context.rollback(0)
        return n

    def end(self, tokens: Sequence[int]) -> None:
        """The text has ended: the cache holds the first `n_past` of `tokens`."""
        self._tokens = tuple(tokens)


def n_read_in_large_batches(n_prompt: int, n_batch: int) -> int:
    """Tokens at the beginning of a prompt that an empty context reads in batches of LARGE_BATCH tokens or more."""
    last = (n_prompt - 1) % n_batch + 1
    if n_batch < LARGE_BATCH:
        return 0
    return n_prompt if last >= LARGE_BATCH else n_prompt - last


def kept_exactly(n: int, n_large: int, n_prompt: int, n_batch: int) -> int:
    """How many of `n` tokens to keep, the first `n_large` of which were read in large batches.

    llama.cpp's kernels for large batches give other logits than those for small ones. So each token of the prompt, kept
    or read after them, must be read in a batch of the kind that an empty context would read it in.
    """
    large = n_read_in_large_batches(n_prompt, n_batch)
    if n > min(n_large, large) and n_large != large:
        n = min(n_large, large)
    if n >= large:
        return n
    if large < n_prompt:  # the last batch is small: it begins where it would
        return n // n_batch * n_batch
    last = (n_prompt - n - 1) % n_batch + 1
    return n if last >= LARGE_BATCH else max(0, n - LARGE_BATCH + last)
