"""RemoteTarget: the draft's side of one text of a lead."""

from __future__ import annotations

import threading
from collections.abc import Callable

from duo.engine.queue import DraftUpdate
from duo.errors import LinkError
from duo.link.messages import Begin, GuessMessage, Message, Text
from duo.spec import types


class RemoteTarget:
    """Stands in for the lead's CandidateQueue on the remote machine: sends candidates, receives accepted tokens.

    The lock protects all fields; the condition notifies the draft's thread of changes. Nothing is sent under the lock,
    because sending may block.
    """

    def __init__(self, begin: Begin, send: Callable[[Message], None], cancel: Callable[[], None]) -> None:
        """`send` sends a message to the lead; `cancel` aborts the draft's current decode when it has become useless."""
        self._serial = begin.serial
        self._n_ahead = begin.n_ahead
        self._send = send
        self._cancel = cancel
        self._changed = threading.Condition(threading.Lock())
        self._epoch = begin.epoch
        self._accepted = list(begin.tokens)
        self._may_draft = begin.may_draft
        self._next = len(self._accepted)  # the position after the last candidate
        self._is_drafting = False
        self._n_known = 0  # accepted tokens that the last candidate builds on
        self._ended = False

    # The lead's side

    def update(self, text: Text) -> None:
        """Add accepted tokens. Raises LinkError if there is a gap before them."""
        with self._changed:
            if text.position != len(self._accepted):
                raise LinkError(f"the lead sent token {text.position} after {len(self._accepted)} tokens")
            self._accepted += text.tokens
            self._may_draft = text.may_draft
            if text.epoch != self._epoch:
                self._epoch = text.epoch
                self._next = len(self._accepted)
                if self._is_drafting:
                    self._cancel()
            self._changed.notify_all()

    # The draft's side

    def close(self) -> None:
        """Stop the draft's thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        """Whether the draft may continue."""
        return self._may_draft and self._next < len(self._accepted) + self._n_ahead

    def wait_for_room(self) -> bool:
        """Block until the draft may continue. False after close()."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.has_room)
            return not self._ended

    def begin(self) -> DraftUpdate:
        """Begin a candidate."""
        with self._changed:
            n_seen, self._n_known = self._n_known, len(self._accepted)
            self._is_drafting = True
            return DraftUpdate(self._epoch, self._accepted[n_seen:])

    def publish(self, epoch: int, position: int, guess: types.Guess, n_tokens: int, seconds: float) -> bool:
        """Send a candidate to the lead. False if it is already known to be useless."""
        with self._changed:
            self._is_drafting = False
            if epoch != self._epoch:
                return False
            self._next = position + 1
            right = position >= len(self._accepted) or self._accepted[position] == guess.token
            made = (guess.token, guess.confidence, n_tokens, seconds)
            message = GuessMessage(self._serial, epoch, self._n_known, position, *made)
        self._send(message)
        return right
