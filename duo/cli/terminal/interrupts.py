"""Signals: the first stops gracefully, the second exits immediately."""

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
    """Which signal was received, if any."""

    def __init__(self) -> None:
        self.signal = 0

    @property
    def status(self) -> int:
        """The exit status that a shell expects; 0 without a signal."""
        return 128 + self.signal if self.signal else 0


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """Call `stop` after the first SIGINT or SIGTERM inside the block; exit on the second.

    A signal handler must not wait for a lock, because it may have interrupted the code that holds it. So `stop` runs
    on another thread, woken through a SimpleQueue, whose put() is reentrant.
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
