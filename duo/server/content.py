"""Contents: the texts of messages, without what the model cannot read or need not. Pure."""

import re
from collections.abc import Collection, Iterable

from duo.server.api_error import ApiError

# How Claude Code's system prompt begins. It changes with each session, and all tokens after it would be read again.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:(?: *[\w-]+=[^;\s]*;)*\s*")


def without_billing(text: str) -> str:
    """A system text without the line for Anthropic's bills, which is no instruction."""
    return _BILLING.sub("", text)


def texts_of(parts: Iterable[tuple[str, str]], role: str, kinds: Collection[str] = ("text",)) -> list[str]:
    """The texts of a content, whose `parts` are types and texts; `kinds` are those of texts.

    What else is in a tool's result is named, and left out of an answer: it is in each later request, too. Raises
    ApiError for what else a user has sent.
    """
    found = []
    for kind, text in parts:
        if kind in kinds:
            found.append(text)
        elif role in ("tool", "function"):
            found.append(f"[{kind[:40]}: left out, as this model reads only text]")
        elif role != "assistant":
            raise ApiError(400, f"content of type {kind[:40]!r} is not supported: this model reads only text")
    return found
