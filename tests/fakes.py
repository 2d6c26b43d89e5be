"""A model small enough to know by heart, with the rules that llama.cpp's contexts impose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from duo.errors import DecodeAborted
from duo.spec.policy import Decision, Policy
from duo.spec.types import Logits

N_VOCAB = 17


def next_token(prefix: Sequence[int], salt: int = 0) -> int:
    """What the fake target writes after `prefix`: depends on all of it, and looks like nothing."""
    state = 2166136261 + salt
    for token in prefix:
        state = (state ^ token) * 16777619 % 2**32
    return state // 7 % N_VOCAB


def text_after(prompt: Sequence[int], n: int) -> list[int]:
    """The `n` tokens that the fake target writes after `prompt`."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class Eager(Policy):
    """Verifies whatever is ready and drafts whatever it may, so that nothing depends on how long things take."""

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        return Decision(max(0, min(len(confidences), self.n_max, n_room - 1)))

    def may_draft(self, confidences: Sequence[float]) -> bool:
        return len(confidences) < self.n_ahead


class FakeContext:
    """Decodes `choose(prefix)` with certainty. Refuses whatever llama.cpp would refuse.

    `during` is called in the middle of every decode: there a test lets the other side move.
    """

    def __init__(
        self,
        choose: Callable[[Sequence[int]], int] = next_token,
        during: Callable[[], object] = lambda: None,
        n_ctx: int = 1000,
        n_batch: int = 8,
        n_vocab: int = N_VOCAB,
    ) -> None:
        self.tokens: list[int] = []
        self.choose = choose
        self.during = during
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_vocab = n_vocab
        self.threads: set[int] = set()
        self.batches: list[int] = []
        self._busy = threading.Lock()
        self._aborted = False
        self._cancelled = False

    @property
    def n_past(self) -> int:
        return len(self.tokens)

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        assert self._busy.acquire(blocking=False), "two threads in one context"
        try:
            assert 1 <= len(tokens) <= self.n_batch, f"a batch of {len(tokens)}"
            assert 0 <= n_rows <= len(tokens)
            assert len(self.tokens) + len(tokens) <= self.n_ctx, "the context is full"
            assert all(0 <= token < self.n_vocab for token in tokens)
            if self._aborted:
                raise DecodeAborted("aborted")
            self.threads.add(threading.get_ident())
            self.batches.append(len(tokens))
            self._cancelled = False
            self.during()
            if self._cancelled:
                raise DecodeAborted("cancelled")
            self.tokens += tokens
            logits = np.zeros((n_rows, self.n_vocab), np.float32)
            for row in range(n_rows):
                end = len(self.tokens) - n_rows + 1 + row
                logits[row, self.choose(self.tokens[:end])] = 5.0
            return logits
        finally:
            self._busy.release()

    def rollback(self, n_past: int) -> None:
        assert 0 <= n_past <= len(self.tokens), f"cannot roll back from {len(self.tokens)} to {n_past}"
        del self.tokens[n_past:]

    def cancel(self) -> None:
        self._cancelled = True

    def abort(self) -> None:
        self._aborted = True

    def resume(self) -> None:
        self._aborted = False

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        self.n_threads = n_threads
