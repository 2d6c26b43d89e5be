"""DraftThread: drives a Drafter beside the target."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from duo.engine.cores import pin
from duo.engine.drafter import Drafter
from duo.engine.queue import CandidateQueue


class DraftThread:
    """Runs `drafter` on a thread of its own from `with` to its end.

    The thread has ended when the block is left. What it died of is in `error`; the target goes on without it.
    """

    def __init__(
        self,
        drafter: Drafter,
        queue: CandidateQueue,
        abort: Callable[[], None],
        cores: frozenset[int] | None = None,
    ) -> None:
        """`abort` ends the draft's present decode; `cores` is where the thread may run."""
        self._drafter = drafter
        self._queue = queue
        self._abort = abort
        self._cores = cores
        self._thread = threading.Thread(target=self._run, name="duo-draft")
        self.error: BaseException | None = None

    def __enter__(self) -> DraftThread:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the drafting and wait for the thread."""
        self._queue.close()
        self._abort()
        self._thread.join()

    def _run(self) -> None:
        try:
            pin(self._cores)
            while self._queue.wait_for_room() and self._drafter.step():
                pass
        except BaseException as error:  # carried to the caller
            self.error = error
        finally:
            self._queue.stop_drafting()
