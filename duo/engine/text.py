"""From tokens to text: whole characters, stop strings, and where a generation ends."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from duo.config import StopConfig

END_OF_TEXT = "end of text"
LIMIT = "token limit"
STOP_STRING = "stop string"
CONTEXT_FULL = "context full"
INTERRUPTED = "interrupted"
GRAMMAR_END = "the grammar allows nothing more"


class TextStream:
    """Turns tokens into bytes that can be shown: whole characters, and nothing that may become a stop string."""

    def __init__(self, piece: Callable[[int], bytes], stop_strings: Sequence[str] = ()) -> None:
        """`piece` gives a token's bytes."""
        self._piece = piece
        self._stops = [stop.encode() for stop in stop_strings]
        self._held = b""
        self.stopped = False

    def push(self, token: int) -> bytes:
        """The bytes that can be shown now. Sets `stopped` when a stop string is complete; it is not shown."""
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
        """What was held back, as it is: the text ends here."""
        shown, self._held = self._held, b""
        return shown

    def _before_stop(self) -> int:
        """Number of bytes before the first place where a stop string may have begun."""
        held = self._held
        longest = max(map(len, self._stops))
        for start in range(max(0, len(held) - longest + 1), len(held)):
            if any(stop.startswith(held[start:]) for stop in self._stops):
                return start
        return len(held)


class Ending:
    """Decides where the text ends: at an end token, a stop string, or the number of tokens asked for."""

    def __init__(self, config: StopConfig, stream: TextStream, is_end: Callable[[int], bool]) -> None:
        """`is_end` tells the tokens that end a text."""
        self._config = config
        self._stream = stream
        self._is_end = is_end
        self._n_tokens = 0
        self.reason: str | None = None

    @property
    def n_room(self) -> int | None:
        """How many tokens may still come; None for any number."""
        return None if self._config.n_predict < 0 else self._config.n_predict - self._n_tokens

    def push(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The text of each token, up to the one that ends it all. Sets `reason` then."""
        shown = []
        for token in tokens:
            ends = not self._config.ignore_eos and self._is_end(token)
            shown.append(b"" if ends else self._stream.push(token))
            self._n_tokens += 1
            self.reason = END_OF_TEXT if ends else self._reason()
            if self.reason:
                shown[-1] += self._stream.finish()
                break
        return tuple(shown)

    def finish(self) -> bytes:
        """What is still held back when something else ends the generation."""
        return self._stream.finish()

    def _reason(self) -> str | None:
        if self._stream.stopped:
            return STOP_STRING
        return LIMIT if self.n_room == 0 else None


def _whole_characters(data: bytes) -> int:
    """Length of `data` without an incomplete UTF-8 character at its end; bytes that are no UTF-8 count as whole."""
    if data.isascii():
        return len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])
