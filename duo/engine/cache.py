"""Cache: a context that keeps what it has read from one text to the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from duo.engine.decoder import Decoder
from duo.errors import RollbackError


class Cache:
    """A context, and the tokens in its KV cache."""

    def __init__(self, context: Decoder, *, can_roll_back: bool = True) -> None:
        """`can_roll_back`: whether a part of what was read can be forgotten, or only all of it."""
        self.context = context
        self._can_roll_back = can_roll_back
        self._tokens: list[int] = []

    def begin(self, text: Sequence[int]) -> int:
        """Keep what `text` begins with, but for its last token. How many tokens that is. Raises RollbackError."""
        pairs = zip(self._tokens[: self.context.n_past], text[:-1], strict=False)
        n = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if n < self.context.n_past and not self._can_roll_back:
            n = 0
        self._tokens = []
        try:
            self.context.rollback(n)
        except RollbackError:
            n = 0
            self.context.rollback(0)
        return n

    def end(self, tokens: Sequence[int]) -> None:
        """The text has ended; the cache holds the first `n_past` of these tokens, and nothing that is known after."""
        self._tokens = list(tokens)
