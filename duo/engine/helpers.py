"""What the engine needs of drafts on other machines: duo.link in earnest, fakes in tests."""

from __future__ import annotations

from typing import Any, Protocol

from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue, Helper


class Helpers(Protocol):
    """Drafts on other machines, which come and go. Called on the target's thread."""

    def begin(self, queue: CandidateQueue, metrics: Metrics) -> None:
        """A text begins: guesses go to `queue`."""
        ...

    def end(self) -> None:
        """The text has ended."""
        ...

    def active(self, *, otherwise: bool) -> Helper | None:
        """The one that drafts now; None if there is none. `otherwise` there is a local draft."""
        ...

    def give_up(self, helper: Helper) -> None:
        """What it guesses is not worth its time in this text."""
        ...

    def learned(self, helper: Helper) -> dict[str, Any] | None:
        """Policy.state() after the last text that it, or one like it, helped with."""
        ...

    def learn(self, helper: Helper, state: dict[str, Any]) -> None:
        """Keep that for the next text."""
        ...
