"""Stack: runs C++ code that recurses once for each character of a text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_PAGE = 65_536  # a multiple of every system's

T = TypeVar("T")

_lock = threading.Lock()  # the size of stacks is a setting of the process


def on_large_stack(n_bytes: int, work: Callable[[], T]) -> T:
    """The result of `work`, run on a thread with a stack of `n_bytes`. Raises what it raises, or MemoryError."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised by result()
            future.set_exception(error)

    with _lock:
        before = threading.stack_size()
        try:
            threading.stack_size(-(-n_bytes // _PAGE) * _PAGE)
            threading.Thread(target=run, name="duo-stack").start()
        except (RuntimeError, ValueError, OverflowError) as error:
            raise MemoryError(f"no memory for a stack of {n_bytes} bytes") from error
        finally:
            threading.stack_size(before)
    return future.result()
