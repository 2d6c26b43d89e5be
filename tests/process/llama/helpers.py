"""Interruptions of decodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def calling(function: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, another thread calls `function` again and again."""
    over = threading.Event()

    def call() -> None:
        while not over.wait(0.001):
            function()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
