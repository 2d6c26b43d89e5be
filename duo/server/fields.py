"""Fields: tells a client about misspelt names of fields, which would otherwise be ignored without a word."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable

import msgspec

log = logging.getLogger("duo.server")

# Fields of other servers. Many clients send them, and they resemble fields that mean something else.
_OTHERS = {
    "chat_template", "min_tokens", "models", "parse_tool_calls", "reasoning_effort", "temperature_last", "tool_ids",
    "top_a", "top_logprobs",
}  # fmt: skip
_SYNONYMS = {"max_length": "max_tokens", "stop_sequences": "stop", "temp": "temperature"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{1,39}")  # can be sent in a header
_MOST_COMPARED = 32  # unknown fields of one request
_MOST_LOGGED = 32  # names, each once, so that no client fills the log
_SIMILAR = 0.8  # difflib's ratio

_logged: set[str] = set()


def misspelt(body: bytes, kind: type[msgspec.Struct]) -> str | None:
    """What to tell the client about the names of the fields in `body`, an object in JSON; None: nothing.

    Other servers' fields are not mistakes, so a name that resembles none of `kind` is ignored. Raises
    msgspec.DecodeError or RecursionError if `body` is no such object.
    """
    known = kind.__struct_encode_fields__
    unknown = [name for name in msgspec.json.decode(body, type=dict[str, msgspec.Raw]) if name not in known]
    meant = {name: nearest for name in unknown[:_MOST_COMPARED] if (nearest := _nearest(name, known))}
    hints = [f'unknown field "{name}": did you mean "{nearest}"?' for name, nearest in meant.items()]
    for name, hint in zip(meant, hints, strict=True):
        if name not in _logged and len(_logged) < _MOST_LOGGED:
            _logged.add(name)
            log.warning("a client sent an %s", hint)
    return "; ".join(hints[:3]) or None


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The field that `name` is a misspelling of."""
    if name in _OTHERS or not _NAME.fullmatch(name):
        return None
    plain = {_plain(field): field for field in known}
    plain |= {_plain(synonym): field for synonym, field in _SYNONYMS.items() if field in plain.values()}
    found = difflib.get_close_matches(_plain(name), plain, 1, _SIMILAR)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    """In topP, top-p and top_p the same."""
    return re.sub(r"[._-]", "", name).lower()
