"""DraftThread: runs a Drafter concurrently with the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from duo.engine.clock import CLOCK, Clock
from duo.engine.cores import pin
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter
from duo.errors import DecodeAborted


class QueueSide(Protocol):
    """When a draft's thread may work: a CandidateQueue, or on a remote machine its substitute, RemoteTarget."""

    def open(self) -> None:
        """Accept candidates."""

    def close(self) -> None:
        """Accept no more candidates, and wake both sides. A second call does nothing."""

    def wait_for_room(self) -> bool:
        """Wait until the draft may continue. False once this is closed."""


class DraftThread:
    """Runs `drafter` on its own thread for the duration of a `with` block, which joins the thread.

    If the thread ends earlier, it closes the queue and sets `has_ended`; `error` is its exception, or None if the
    drafter can draft no more for this text.
    """

    def __init__(
        self,
        drafter: Drafter,
        queue: QueueSide,
        draft: Decoder,
        cores: frozenset[int] | None = None,
        on_end: Callable[[], None] = lambda: None,
        clock: Clock = CLOCK,
    ) -> None:
        """`draft`: the drafter's context. `cores`: to pin the thread to. `on_end`: called if the thread ends early."""
        self._drafter = drafter
        self._queue = queue
        self._draft = draft
        self._cores = cores
        self._on_end = on_end
        self._thread = clock.thread(self._run, "duo-draft")
        self.error: BaseException | None = None
        self.has_ended = False

    def __enter__(self) -> DraftThread:
        self._queue.open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Abort the current decode and join the thread."""
        self._queue.close()
        self._draft.abort()
        self._thread.join()
        self._draft.resume()

    def _run(self) -> None:
        try:
            pin(self._cores)
            while self._queue.wait_for_room():
                if not self._step():
                    break
            else:
                return
        except BaseException as error:  # handled by the owner of the thread
            self.error = error
        self.has_ended = True
        self._queue.close()
        self._on_end()

    def _step(self) -> bool:
        try:
            return self._drafter.step()
        except DecodeAborted:
            return True  # the target has contradicted this token: continue from the new text
