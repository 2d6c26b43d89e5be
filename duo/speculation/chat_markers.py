"""Chat markers: what a template writes around messages. With those of two models, a prompt of one fits the other."""

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
    if not (plain := _between(render, bos, 1)):
        return None
    system, system_user, *_ = _between(render, bos, 0) or (None, None)
    return Markers(plain[0], system, system_user, *plain[1:])


def _between(render: Render, bos: str, first: int) -> list[str]:
    """What is around the messages from index `first` on; empty if they are not told apart."""
    messages = [{"role": role, "content": content} for role, content in zip(_ROLES, _CONTENTS, strict=True)]
    try:
        text = render(messages[first:]).removeprefix(bos)
    except Exception:  # a template is a program: it may raise anything
        return []
    parts = re.split(f"({'|'.join(_CONTENTS)})", text)
    return parts[::2] if tuple(parts[1::2]) == _CONTENTS[first:] else []


def convert(text: str, ours: Markers, theirs: Markers) -> str:
    """`text` with their markers, if it begins with ours; otherwise as it is."""
    starts = {ours.start: theirs.start}
    if ours.system is not None:
        starts.setdefault(ours.system, theirs.start if theirs.system is None else theirs.system)
    start = max((one for one in starts if one.strip() and text.startswith(one)), key=len, default="")
    others = {
        ours.last: theirs.last,
        ours.user_assistant: theirs.user_assistant,
        ours.assistant_user: theirs.assistant_user,
    }
    usable = sorted((marker for marker in others if marker.strip()), key=len, reverse=True)
    if not start or not usable:
        return text
    converted, rest = starts[start], text[len(start) :]
    if ours.system_user and start == ours.system and ours.system_user in rest:
        system, rest = rest.split(ours.system_user, 1)
        converted += system + ("\n\n" if theirs.system_user is None else theirs.system_user)
    return converted + re.sub("|".join(map(re.escape, usable)), lambda match: others[match[0]], rest)
