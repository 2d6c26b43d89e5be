"""From tokens to text: whole characters, stop strings, and the end of a generation."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from duo.config import StopConfig

# Reasons why a generation ended: Completion.stop_reason.
END_OF_TEXT = "end of text"
LIMIT = "token limit"
STOP_STRING = "stop string"
CONTEXT_FULL = "context full"
INTERRUPTED = "interrupted"
GRAMMAR_END = "the grammar allows nothing more"


class TextStream:
    """Turns tokens into bytes for output: whole characters, without the possible beginning of a stop string."""

    def __init__(self, piece: Callable[[int], bytes], stop_strings: Sequence[str] = ()) -> None:
        """`piece` returns the bytes of a token."""
        self._piece = piece
        self._stops = [stop.encode() for stop in stop_strings]
        self._held = b""
        self.stopped = False

    def push(self, token: int) -> bytes:
        """The bytes that can be output now. Sets `stopped` when a stop string is complete; it is not output."""
        self._held += self._piece(token)
        n = _whole_characters(self._held)
        if self._stops:
            found = [self._held.find(stop) for stop in self._stops if stop in self._held]
            if found:
                self.stopped = True
                self._held = self._held[: min(found)]
                return self.finish()
            n = min(n, self._before_stop())
        shown, self._held = self._held[:n], self._held[n:]
        return shown

    def finish(self) -> bytes:
        """The end of the text: the bytes that were held back."""
        shown, self._held = self._held, b""
        return shown

    def _before_stop(self) -> int:
        """Number of bytes before the first possible beginning of a stop string."""
        held = self._held
        longest = max(map(len, self._stops))
        for start in range(max(0, len(held) - longest + 1), len(held)):
            if any(stop.startswith(held[start:]) for stop in self._stops):
                return start
        return len(held)


class Ending:
    """Decides where the text ends: at an end token, a stop string, or the maximum number of tokens."""

    def __init__(self, config: StopConfig, stream: TextStream, is_end: Callable[[int], bool]) -> None:
        """`is_end`: whether a token ends a text."""
        self._config = config
        self._stream = stream
        self._is_end = is_end
        self._n_tokens = 0
        self.reason: str | None = None

    @property
    def n_room(self) -> int | None:
        """How many more tokens are allowed; None: no limit."""
        return None if self._config.n_predict < 0 else self._config.n_predict - self._n_tokens

    def push(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes of each token, up to the one that ends the text, which sets `reason`."""
        shown = []
        for token in tokens:
            ends = not self._config.ignore_eos and self._is_end(token)
            shown.append(b"" if ends else self._stream.push(token))
            self._n_tokens += 1
            if ends:
                self.reason = END_OF_TEXT
            elif self._stream.stopped:
                self.reason = STOP_STRING
            elif self.n_room == 0:
                self.reason = LIMIT
            if self.reason:
                shown[-1] += self._stream.finish()
                break
        return tuple(shown)

    def finish(self) -> bytes:
        """The bytes still held back when the generation ends for another reason."""
        return self._stream.finish()


def _whole_characters(data: bytes) -> int:
    """Length of `data` without an incomplete UTF-8 character at its end; invalid bytes count as characters."""
    if data.isascii():
        return len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])
