"""Cache: a context that keeps what it has read from one text to the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from duo.engine.decoder import Decoder
from duo.errors import RollbackError


class Cache:
    """A context, and the tokens in its KV cache."""

    def __init__(self, context: Decoder) -> None:
        self.context = context
        self._tokens: list[int] = []

    def begin(self, text: Sequence[int]) -> int:
        """Keep what `text` begins with, but for its last token: how many tokens that is.

        Where so many cannot be taken back, all are. Raises RollbackError if not even that can be done.
        """
        pairs = zip(self._tokens[: self.context.n_past], text[:-1], strict=False)
        n = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
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
