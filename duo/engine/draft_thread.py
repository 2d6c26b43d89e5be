"""DraftThread: drives a Drafter beside the target."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from duo.engine.cores import pin
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter
from duo.errors import DecodeAborted


class QueueSide(Protocol):
    """Where a draft's thread learns when to work: a CandidateQueue, or what stands for one on another machine."""

    def open(self) -> None:
        """Candidates may come."""
        ...

    def close(self) -> None:
        """No more will; wakes both sides. A second call does nothing."""
        ...

    def wait_for_room(self) -> bool:
        """Sleep until the draft may go on. False once this is closed."""
        ...


class DraftThread:
    """Runs `drafter` on a thread of its own from `with` to its end.

    The thread has ended when the block is left; the drafter may then be driven from another one. If it ends before, it
    closes the queue, and `error` is what it ended of, None if the drafter can guess no more in this text.
    """

    def __init__(
        self,
        drafter: Drafter,
        queue: QueueSide,
        draft: Decoder,
        cores: frozenset[int] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`draft` is the drafter's context, `cores` where the thread may run; `on_end` is called if it ends first."""
        self._drafter = drafter
        self._queue = queue
        self._draft = draft
        self._cores = cores
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="duo-draft")
        self.error: BaseException | None = None
        self.has_ended = False

    def __enter__(self) -> DraftThread:
        """Start the thread."""
        self._queue.open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the drafting, in the middle of a decode if need be, and wait for the thread."""
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
        except BaseException as error:  # carried to the caller
            self.error = error
        self.has_ended = True
        self._queue.close()
        self._on_end()

    def _step(self) -> bool:
        try:
            return self._drafter.step()
        except DecodeAborted:
            return True  # the target has written something else: look again
