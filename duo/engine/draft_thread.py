"""DraftThread: drives a Drafter beside the target."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol

from duo.engine.cores import pin
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter
from duo.errors import DecodeAborted


class Room(Protocol):
    """Where a draft's thread learns when to work: a CandidateQueue, or a Mirror of one on another machine."""

    def begin_beside(self) -> None:
        """From now on the draft works on its own thread."""
        ...

    def end_beside(self) -> None:
        """Tell the draft's thread to end."""
        ...

    def wait_for_room(self) -> bool:
        """Sleep until the draft may guess on. False when the drafting has ended."""
        ...

    def stop_drafting(self) -> None:
        """Say that no more guesses will come."""
        ...


class DraftThread:
    """Runs `drafter` on a thread of its own from `with` to its end.

    The thread has ended when the block is left; the drafter may then be driven from another one. What the thread died
    of is in `error`; the target goes on without it.
    """

    def __init__(self, drafter: Drafter, queue: Room, draft: Decoder, cores: frozenset[int] | None = None) -> None:
        """`draft` is the drafter's context; `cores` is where the thread may run."""
        self._drafter = drafter
        self._queue = queue
        self._draft = draft
        self._cores = cores
        self._thread = threading.Thread(target=self._run, name="duo-draft")
        self.error: BaseException | None = None

    def __enter__(self) -> DraftThread:
        """Start the thread."""
        self._queue.begin_beside()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the drafting, in the middle of a decode if need be, and wait for the thread."""
        self._queue.end_beside()
        self._draft.abort()
        self._thread.join()
        self._draft.resume()

    def _run(self) -> None:
        try:
            pin(self._cores)
            while self._queue.wait_for_room():
                self._step()
        except BaseException as error:  # carried to the caller
            self.error = error
            self._queue.stop_drafting()

    def _step(self) -> None:
        try:
            if not self._drafter.step():
                self._queue.stop_drafting()
        except DecodeAborted:
            pass  # the target has written something else: look again
