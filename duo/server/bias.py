"""`logit_bias` of a request: OpenAI's object, or llama-server's array, which may name texts and forbid tokens."""

from __future__ import annotations

import math
import re
from typing import Annotated

import msgspec

from duo.config import MAX_LOGIT
from duo.link.guard import ApiError
from duo.llama.model import Model

_MOST = 1024  # tokens
_ID = re.compile(r"[+-]?[0-9]+")

Text = Annotated[str, msgspec.Meta(max_length=64)]
Bias = Annotated[float, msgspec.Meta(ge=-MAX_LOGIT, le=MAX_LOGIT)] | bool
LogitBias = dict[Text, Bias] | Annotated[list[tuple[int | Text, Bias]], msgspec.Meta(max_length=_MOST)]


def token_biases(given: LogitBias, model: Model) -> tuple[tuple[int, float], ...]:
    """The tokens, and what is added to the logit of each; a text stands for all of its tokens. Raises ApiError."""
    found: list[tuple[int, float]] = []
    for key, value in given.items() if isinstance(given, dict) else given:
        if value is True:
            raise ApiError(400, "logit_bias: a bias is a number, or false to forbid the token")
        bias = -math.inf if value is False else value
        found += [(token, bias) for token in _tokens(key, model)]
        if len(found) > _MOST:
            raise ApiError(400, f"logit_bias: more than {_MOST} tokens")
    return tuple(found)


def _tokens(key: int | str, model: Model) -> list[int]:
    if isinstance(key, str) and not _ID.fullmatch(key):
        return model.tokenize(key, add_bos=False, parse_special=False)
    if not 0 <= int(key) < model.n_vocab:
        raise ApiError(400, f"logit_bias: no token {key} in a vocabulary of {model.n_vocab}")
    return [int(key)]
