"""Ctrl-C: the first stops in order, the second at once."""

from __future__ import annotations

import os
import signal
import sys
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
    """Call `stop` on the first SIGINT or SIGTERM inside the block, end the process on the second."""
    interrupt = Interrupt()

    def handle(number: int, _frame: FrameType | None) -> None:
        if interrupt.signal:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # a progress bar may have hidden the cursor
            os._exit(128 + number)
        interrupt.signal = number
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
