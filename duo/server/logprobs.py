"""Logprobs as OpenAI's JSON."""

from __future__ import annotations

import codecs
from collections import deque
from typing import Any

from duo.llama.model import Model
from duo.spec.types import Step, TokenLogprobs

_LEAST = -9999.0  # what OpenAI's API has for -inf, which JSON cannot express


class AnswerLogprobs:
    """The logprobs of one answer: of the tokens whose text begins in it, so not of an end token or a stop string."""

    def __init__(self, model: Model, *, chat: bool) -> None:
        """`chat`: the JSON of a chat, otherwise that of a completion."""
        self._model = model
        self._chat = chat
        self._waiting: deque[TokenLogprobs] = deque()
        self._n_shown = 0  # bytes of the text so far
        self._n_before = 0  # bytes before the first of `waiting`
        self._n_characters = 0  # complete characters in these
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, step: Step) -> None:
        """The next step of the text, also one that shows nothing."""
        self._waiting += step.logprobs
        self._n_shown += sum(map(len, step.pieces))

    def take(self) -> dict[str, Any]:
        """The `logprobs` of a choice: of the tokens since the last call whose text has begun to be shown.

        A completion's `text_offset` counts the characters of the answer.
        """
        tokens: list[tuple[TokenLogprobs, int]] = []
        while self._waiting and self._n_before < self._n_shown:
            logprobs = self._waiting.popleft()
            tokens.append((logprobs, self._n_characters))
            piece = self._model.piece(logprobs.token)
            self._n_before += len(piece)
            self._n_characters += len(self._characters.decode(piece))
        return self._as_chat(tokens) if self._chat else self._as_completion(tokens)

    def _as_chat(self, tokens: list[tuple[TokenLogprobs, int]]) -> dict[str, Any]:
        content = [
            {**self._entry(token, logprob), "top_logprobs": [self._entry(*other) for other in top]}
            for (token, logprob, top), _ in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._model.piece(token)
        return {"token": self._name(token), "logprob": max(logprob, _LEAST), "bytes": list(piece) or None}

    def _as_completion(self, tokens: list[tuple[TokenLogprobs, int]]) -> dict[str, Any]:
        return {
            "tokens": [self._name(logprobs.token) for logprobs, _ in tokens],
            "token_logprobs": [max(logprobs.logprob, _LEAST) for logprobs, _ in tokens],
            "top_logprobs": [self._by_text(logprobs) for logprobs, _ in tokens],
            "text_offset": [offset for _, offset in tokens],
        }

    def _by_text(self, logprobs: TokenLogprobs) -> dict[str, float]:
        """As OpenAI has it: always with the chosen token. Of tokens with the same text, that or the likeliest."""
        found: dict[str, float] = {}
        for token, logprob in logprobs.top:
            found.setdefault(self._name(token), max(logprob, _LEAST))
        return found | {self._name(logprobs.token): max(logprobs.logprob, _LEAST)}

    def _name(self, token: int) -> str:
        """The text of a token, also of a special one, which has no bytes in a text."""
        return (self._model.piece(token) or self._model.spelling([token])).decode("utf-8", "replace")
