"""RemoteTarget: what a draft knows of a target on another machine."""

from __future__ import annotations

import threading
from collections.abc import Callable

from duo.errors import LinkError
from duo.link.messages import Begin, GuessMessage, Message, Text
from duo.spec import types


class RemoteTarget:
    """Stands for the lead's CandidateQueue on the draft's machine: takes guesses, and tells what was accepted.

    The lock protects all fields; the condition tells the draft's thread that something changed. Nothing is sent
    under it, for that may take long.
    """

    def __init__(self, begin: Begin, send: Callable[[Message], None], cancel: Callable[[], None]) -> None:
        """`send` brings a message to the lead; `cancel` ends the draft's present decode when it has become useless."""
        self._serial = begin.serial
        self._n_ahead = begin.n_ahead
        self._send = send
        self._cancel = cancel
        self._changed = threading.Condition(threading.Lock())
        self._epoch = begin.epoch
        self._accepted = list(begin.tokens)
        self._may_draft = begin.may_draft
        self._next = len(self._accepted)  # the position after the last guess
        self._working_on: int | None = None  # the epoch of the guess in the making
        self._n_known = 0  # tokens that were accepted when it began
        self._ended = False

    # The lead's side

    def update(self, text: Text) -> None:
        """The lead has accepted more. Raises LinkError if something is missing in between."""
        with self._changed:
            if text.position != len(self._accepted):
                raise LinkError(f"the lead goes on at {text.position}, after {len(self._accepted)} tokens")
            self._accepted += text.tokens
            self._may_draft = text.may_draft
            if text.epoch != self._epoch:
                self._epoch = text.epoch
                self._next = len(self._accepted)
                if self._working_on is not None:
                    self._cancel()
            self._changed.notify_all()

    # The draft's side

    def open(self) -> None:
        """Nothing to do: it is open from the beginning."""

    def close(self) -> None:
        """Tell the draft's thread to end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for_room(self) -> bool:
        """Sleep until the draft may guess on. False when the drafting has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._has_room())
            return not self._ended

    def begin(self) -> tuple[int, list[int]]:
        """The draft begins a token: the epoch, and the tokens accepted since it last asked."""
        with self._changed:
            n_seen, self._n_known = self._n_known, len(self._accepted)
            self._working_on = self._epoch
            return self._epoch, self._accepted[n_seen:]

    def publish(self, epoch: int, position: int, guess: types.Guess, n_tokens: int, seconds: float) -> bool:
        """Send a guess to the lead. False if it is known here to be of no use."""
        with self._changed:
            self._working_on = None
            if epoch != self._epoch:
                return False
            self._next = position + 1
            n_known = self._n_known
            right = position >= len(self._accepted) or self._accepted[position] == guess.token
        made = (guess.token, guess.confidence, n_tokens, seconds)
        self._send(GuessMessage(self._serial, epoch, n_known, position, *made))
        return right

    def _has_room(self) -> bool:
        return self._may_draft and self._next < len(self._accepted) + self._n_ahead
