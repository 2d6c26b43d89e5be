"""Signals: the first stops gracefully, the second exits immediately.

SIGINT has three stages. While modules are imported, and after a command has ended, it ends the process. Inside
interrupts_raise(), around a command, it raises KeyboardInterrupt, so that `with` blocks clean up. Inside
on_interrupt(), around what takes long, it stops that in order.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@contextmanager
def handling(handle: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Handle these signals by `handle` inside the block. For the main thread."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in reversed(before.items()):  # the first one last: its handler may raise
            signal.signal(number, handler)


@dataclass(slots=True)
class Interrupt:
    """Which signal was received, if any."""

    signal: int = 0

    @property
    def status(self) -> int:
        """The exit status that a shell expects; 0 without a signal."""
        return 128 + self.signal if self.signal else 0


def _exit(number: int) -> None:
    """End the process at once."""
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h")  # a progress bar may have hidden the cursor
    os._exit(128 + number)


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Raise KeyboardInterrupt after the first SIGINT inside the block; the second ends the process.

    Whatever becomes of the exception on its way out, such as another exception, it leaves the block as itself. Where
    Python cannot raise it, as in a callback of C code, the process ends.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a job in the background
        yield
        return
    interrupted = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(number, lambda number, _: _exit(number))
        raise KeyboardInterrupt

    def end(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _exit(signal.SIGINT)
        else:
            before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, end
    try:
        signal.signal(signal.SIGINT, handle)
        yield
    except BaseException:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if not interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.unraisablehook = before


def signals_that_end() -> list[int]:
    """SIGINT, SIGTERM and SIGHUP, unless the latter is ignored, as under nohup."""
    hang_ups = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_ups]


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupt]:
    """Call `stop` after the first of the signals_that_end() inside the block; exit on the second.

    A signal handler must not wait for a lock, because it may have interrupted the code that holds it. So `stop` runs
    on another thread, woken through a SimpleQueue, whose put() is reentrant.
    """
    interrupt = Interrupt()
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def watch() -> None:
        if signals.get():
            stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == interrupt.signal == signal.SIGHUP:  # a terminal that is gone may send it twice
            return
        if interrupt.signal:
            _exit(number)
        interrupt.signal = number
        signals.put(number)

    watcher = threading.Thread(target=watch, name="duo-signals")
    # The handlers are there before and after the watcher, which an exception would leave waiting forever.
    with handling(handle, *signals_that_end()):
        watcher.start()
        try:
            yield interrupt
        finally:
            signals.put(0)
            watcher.join()
