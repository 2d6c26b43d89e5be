"""Decoder: the interface of duo.llama.Context that the engine uses. Cache: one whose tokens the next text may use."""

# ruff: noqa: D102 - duo/llama/context.py describes the methods of a Decoder
from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from duo.config import LARGE_BATCH
from duo.config.model_config import ROWS
from duo.errors import RollbackError
from duo.speculation.types import Logits, TokenLogprobs, common_prefix

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


@dataclass(slots=True)
class Cache:
    """A context, and the tokens in its KV cache."""

    context: Decoder
    exact: bool = False  # keep only what a new context would read in batches of the same kind: see kept_exactly()
    n_prompt: int = 0  # of the tokens; the others are those that were written
    is_copied: bool = False  # whether there is a copy of what it holds
    # Logprobs of its tokens from the second on, as far as it was read in batches of score_size()
    scored: list[TokenLogprobs] = field(default_factory=list)
    _tokens: Sequence[int] = ()
    _n_large: int = 0  # of them were read in large batches, if `exact`

    def begin(self, text: Sequence[int], n_top: int | None = None) -> int:
        """Keep the longest common prefix with `text`, without its last token, and return its length.

        `n_top`: only if `scored` has the tokens in it, each with so many likely ones. Clears the cache if it cannot be
        rolled back that far. Raises RollbackError if even that fails.
        """
        n = common_prefix(self._tokens[: self.context.n_past], text[:-1])
        n_scored = max(0, n - 1)  # the next token is another one
        if n_top is not None:
            # Only whole batches, so that logprobs do not depend on what was in the cache; none if they would.
            known, size = self.scored[:n_scored] if self.savable is not None else [], score_size(self.context)
            n = n_scored = len(known) // size * size if known and len(known[0].top) == n_top else 0
            self._n_large = 0
        elif self.exact:
            n = kept_exactly(n, self._n_large, len(text), self.context.n_batch)
            self._n_large = n_read_in_large_batches(len(text), self.context.n_batch)
        self._tokens = ()
        try:
            self.context.rollback(n)
        except RollbackError:
            n = n_scored = 0
            self.context.rollback(0)
        self.scored = self.scored[: min(n_scored, n)]
        return n

    def end(self, tokens: Sequence[int], n_prompt: int = 0) -> None:
        """The text has ended: the cache holds the first `n_past` of `tokens`."""
        self._tokens, self.n_prompt, self.is_copied = tuple(tokens), n_prompt, False

    @property
    def tokens(self) -> Sequence[int]:
        """What it holds."""
        return self._tokens[: self.context.n_past]

    def save(self) -> SavedCache:
        """A copy."""
        savable, state = self.savable, None
        if self.tokens and savable is not None:
            with suppress(MemoryError):  # then the text is read again
                state = savable.save()
        return SavedCache(self.tokens, self.n_prompt, self._n_large, state)

    @property
    def n_state_bytes(self) -> int:
        """The size of a copy."""
        return self.savable.n_state_bytes if self.context.n_past and self.savable is not None else 0

    @property
    def savable(self) -> Savable | None:
        """The context, if it can be saved."""
        return self.context if isinstance(self.context, Savable) and self.context.can_save else None

    def load(self, saved: SavedCache) -> None:
        """Hold what was saved; nothing, if llama.cpp cannot restore it."""
        self.clear()
        if saved.state is not None and (savable := self.savable) is not None and savable.load(saved.state):
            self._tokens, self.n_prompt, self._n_large = saved.tokens, saved.n_prompt, saved.n_large

    def clear(self) -> None:
        """Hold nothing."""
        self.context.rollback(0)
        self._tokens, self.n_prompt, self._n_large, self.is_copied, self.scored = (), 0, 0, False, []


@dataclass(frozen=True, slots=True)
class SavedCache:
    """A copy of a Cache."""

    tokens: Sequence[int]
    n_prompt: int
    n_large: int
    state: SavedState | None

    @property
    def n_bytes(self) -> int:
        """Its size in memory."""
        return self.state.nbytes if self.state is not None else 0


def score_size(decoder: Decoder) -> int:
    """Tokens of a batch that returns a row for each."""
    return min(decoder.n_batch, ROWS)


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
