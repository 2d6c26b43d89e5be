"""From tokens to text: whole characters, stop strings, and the end of a generation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duo.config import StopConfig
from duo.speculation.types import whole

# Reasons why a generation ended: Completion.stop_reason.
END_OF_TEXT = "end of text"
LIMIT = "token limit"
STOP_STRING = "stop string"
CONTEXT_FULL = "context full"
INTERRUPTED = "interrupted"
GRAMMAR_END = "the grammar allows nothing more"


@dataclass(slots=True)
class Ending:
    """Decides where the text ends. Holds back incomplete characters, and what may be the beginning of a stop string."""

    config: StopConfig
    piece: Callable[[int], bytes]  # the bytes of a token
    is_end: Callable[[int], bool]  # whether a token ends a text
    reason: str | None = None
    stopped_by: str | None = None  # the stop string that ended the text
    _n_tokens: int = 0
    _held: bytes = b""

    @property
    def n_room(self) -> int | None:
        """How many more tokens are allowed; None: no limit."""
        return None if self.config.n_predict < 0 else self.config.n_predict - self._n_tokens

    def push(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes of each token, up to the one that ends the text, which sets `reason`."""
        shown = []
        for token in tokens:
            if not self.config.ignore_eos and self.is_end(token):
                self.reason = END_OF_TEXT
                shown.append(b"")
            else:
                shown.append(self._show(token))
            self._n_tokens += 1
            if self.reason is None and self.n_room == 0:
                self.reason = LIMIT
            if self.reason:
                shown[-1] += self.finish()
                break
        return tuple(shown)

    def finish(self) -> bytes:
        """The end of the text: the bytes that were held back."""
        shown, self._held = self._held, b""
        return shown

    def _show(self, token: int) -> bytes:
        """The bytes that can be output now. A stop string is not output."""
        held = self._held + self.piece(token)
        n, stops = whole(held), [stop.encode() for stop in self.config.stop_strings]
        if stops:
            if found := [(held.find(stop), stop.decode()) for stop in stops if stop in held]:
                self.reason, (n, self.stopped_by) = STOP_STRING, min(found)
                held = held[:n]
            else:
                n = min(n, _before_stop(held, stops))
        self._held = held[n:]
        return held[:n]


def _before_stop(held: bytes, stops: Sequence[bytes]) -> int:
    """Number of bytes before the first possible beginning of a stop string."""
    longest = max(map(len, stops))
    for start in range(max(0, len(held) - longest + 1), len(held)):
        if any(stop.startswith(held[start:]) for stop in stops):
            return start
    return len(held)
