"""Server-sent events: the form in which an answer comes piece by piece."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator


class EventReader:
    """Server-sent events, from bytes as they come.

    Not from httpx's lines: those end at U+2028 as well, which JSON may have in the middle of a text.
    """

    def __init__(self) -> None:
        utf_8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._decoder = io.IncrementalNewlineDecoder(utf_8, translate=True)
        self._rest = ""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Each event that is whole now: its kind, mostly empty, and its data."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in lines:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "event":
                self._kind = value.removeprefix(" ")
            elif not line:
                event = self._kind, "\n".join(self._data)
                self._kind, self._data = "", []
                if event[1]:
                    yield event
