"""Cache: a context whose KV cache is reused by the next text with the same beginning."""

from __future__ import annotations

from collections.abc import Sequence

from duo.engine.decoder import Decoder
from duo.errors import RollbackError
from duo.spec.types import common_prefix


class Cache:
    """A context, and the tokens in its KV cache."""

    def __init__(self, context: Decoder) -> None:
        self.context = context
        self._tokens: list[int] = []

    def begin(self, text: Sequence[int]) -> int:
        """Keep the longest common prefix with `text`, without its last token, and return its length.

        Clears the cache if it cannot be rolled back that far. Raises RollbackError if even that fails.
        """
        n = common_prefix(self._tokens[: self.context.n_past], text[:-1])
        self._tokens = []
        try:
            self.context.rollback(n)
        except RollbackError:
            n = 0
            self.context.rollback(0)
        return n

    def end(self, tokens: Sequence[int]) -> None:
        """The text has ended: the cache holds the first `n_past` of `tokens`."""
        self._tokens = list(tokens)
