"""Tokens: tokenises for requests: not on the event loop, and within limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from duo.link.guard import ApiError
from duo.llama.model import Model

MOST_TOKENS = 2**20  # in one request
_MOST_TEXT = 2**20  # bytes that are tokenised for one request, or
_MOST_PER_TOKEN = 8  # so many for each token of the context, if that is more
# llama.cpp's SentencePiece copies all tokens so far for each character that the vocabulary does not have: 2 s.
_MOST_COPIES = 2**36
_LARGE = 2**14  # bytes whose processing may take longer than a few milliseconds

T = TypeVar("T")


class TokenWork:
    """Runs work on other threads. Large inputs are processed one after the other, and do not delay small ones."""

    def __init__(self) -> None:
        self._large = anyio.CapacityLimiter(1)

    async def run(self, n_bytes: int, work: Callable[[], T]) -> T:
        """The result of `work`, whose input has `n_bytes`. Raises what it raises."""
        return await anyio.to_thread.run_sync(work, limiter=self._large if n_bytes > _LARGE else None)


def check_text(text: str, model: Model, n_ctx: int, *, is_prompt: bool = True) -> None:
    """Raise ApiError if `text` takes too long to tokenise, or is a prompt that cannot fit `n_ctx` tokens."""
    n_bytes = len(text.encode("utf-8", "replace"))
    if is_prompt and n_bytes > n_ctx * model.longest_token:
        message = f"the prompt has {n_bytes} bytes, too many for the context {n_ctx}"
        raise ApiError(400, message, code="context_length_exceeded")
    most = max(_MOST_TEXT, _MOST_PER_TOKEN * n_ctx)
    if n_bytes > most:
        raise ApiError(400, f"the text has {n_bytes} bytes: at most {most} can be tokenised in one request")
    if n_bytes > _LARGE and (n_unknown := model.n_unknown(text)) * n_bytes > _MOST_COPIES:
        message = f"{n_unknown} characters of the text are not in the vocabulary: a text of {n_bytes} bytes may have"
        raise ApiError(400, f"{message} at most {_MOST_COPIES // n_bytes} of them")


def checked_tokens(tokens: Sequence[Any], model: Model) -> list[int]:
    """The tokens of a request. Raises ApiError if they are invalid."""
    if len(tokens) > MOST_TOKENS:
        raise ApiError(400, f"too many tokens: at most {MOST_TOKENS} are allowed")
    if len(tokens) > 1 and not isinstance(tokens[0], int):
        raise ApiError(400, "several prompts in one request are not supported")
    n_vocab = model.n_vocab
    if wrong := [token for token in tokens if not isinstance(token, int) or not 0 <= token < n_vocab]:
        raise ApiError(400, f"no token {str(wrong[0])[:40]!r} in a vocabulary of {n_vocab}")
    return list(tokens)


def tokens_json(tokens: Sequence[int], model: Model | None) -> bytes:
    """The response to /tokenize; with `model`, each token has its text, or its bytes if they are not text."""
    if model is None:
        return msgspec.json.encode({"tokens": tokens})
    items = {
        token: msgspec.json.encode({"id": token, "piece": _text(model.spelling([token]))}) for token in set(tokens)
    }
    return b'{"tokens":[%b]}' % b",".join(map(items.__getitem__, tokens))


def _text(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
