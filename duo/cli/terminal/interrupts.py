"""Ctrl-C: the first stops in order, the second at once."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user, or the system, has asked to stop."""

    def __init__(self) -> None:
        self.signal = 0

    @property
    def status(self) -> int:
        """The exit status that a shell expects; 0 if nothing has happened."""
        return 128 + self.signal if self.signal else 0


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """Call `stop` after the first SIGINT or SIGTERM inside the block, end the process on the second.

    A handler may interrupt code that holds a lock, and must not wait for one: so `stop` is called on another thread,
    which the handler tells through the one queue whose put() may interrupt itself.
    """
    interrupt = Interrupt()
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def watch() -> None:
        if signals.get():
            stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if interrupt.signal:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # a progress bar may have hidden the cursor
            os._exit(128 + number)
        interrupt.signal = number
        signals.put(number)

    watcher = threading.Thread(target=watch, name="duo-signals")
    watcher.start()
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.put(0)
        watcher.join()
