"""Chat markers: what a chat template puts before, between and after the messages.

With the markers of two models, a prompt in the chat format of one becomes a prompt in that of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

Render = Callable[[Sequence[dict[str, str]]], str]  # a chat template: raises whatever it likes

_ROLES = ("system", "user", "assistant", "user")
_CONTENTS = ("zqasystem", "zqbuser", "zqcassistant", "zqdagain")  # that no template contains or changes


class Markers(NamedTuple):
    """The markers of a chat template. None: it has no system messages."""

    start: str  # before the user's first message
    system: str | None  # before a system message at the start
    system_user: str | None
    user_assistant: str
    assistant_user: str
    last: str  # after the user's last message, before the answer


def find_markers(render: Render, bos: str) -> Markers | None:
    """The markers of a chat template, without BOS in front; None if they cannot be found."""
    plain = _between(render, 1)
    if plain is None:
        return None
    start, user_assistant, assistant_user, last = (part.removeprefix(bos) if not i else part for i, part in plain)
    full = _between(render, 0)
    system = full[0][1].removeprefix(bos) if full is not None else None
    return Markers(start, system, full[1][1] if full is not None else None, user_assistant, assistant_user, last)


def _between(render: Render, first: int) -> list[tuple[int, str]] | None:
    """What is around the messages from index `first` on, numbered."""
    messages = [{"role": role, "content": content} for role, content in zip(_ROLES, _CONTENTS, strict=True)]
    try:
        text = render(messages[first:])
    except Exception:  # a template is a program: it may raise anything
        return None
    parts = re.split("|".join(_CONTENTS[first:]), text)
    found = re.findall("|".join(_CONTENTS[first:]), text)
    return list(enumerate(parts)) if found == list(_CONTENTS[first:]) else None


def convert(text: str, ours: Markers, theirs: Markers) -> str:
    """`text` with their markers, if it begins with ours; otherwise as it is."""
    starts = [(ours.start, theirs.start)]
    if ours.system is not None:
        starts.append((ours.system, theirs.start if theirs.system is None else theirs.system))
    starts = [(one, other) for one, other in starts if one.strip() and text.startswith(one)]
    if not starts:
        return text
    start, new_start = max(starts, key=lambda pair: len(pair[0]))
    system_user = "\n\n" if theirs.system_user is None else theirs.system_user
    others = {ours.last: theirs.last, ours.user_assistant: theirs.user_assistant}
    others[ours.assistant_user] = theirs.assistant_user
    rest = text[len(start) :]
    if ours.system_user and start == ours.system and ours.system_user in rest:
        system, rest = rest.split(ours.system_user, 1)
        new_start += system + system_user
    usable = sorted((marker for marker in others if marker.strip()), key=len, reverse=True)
    if not usable:
        return text
    return new_start + re.sub("|".join(map(re.escape, usable)), lambda match: others[match[0]], rest)
