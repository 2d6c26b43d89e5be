"""Ownership of one C pointer."""

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from duo.errors import ClosedError
from duo.llama.lifeline import is_lost

_TICK_S = 0.25


class Handle:
    """Owns a C pointer and frees it once: at close(), when collected, or at exit.

    Children close before their parent, and a child keeps its parent alive. What another thread than the closing one
    may be running is inside use(), which close() waits for.
    """

    def __init__(
        self,
        pointer: Any,
        free: Callable[[Any], object],
        parent: "Handle | None" = None,
        call: AbstractContextManager[None] | None = None,
    ) -> None:
        """`call`: surrounds each call that may use an RPC server; by default the parent's."""
        self.call: AbstractContextManager[None] = call or (parent.call if parent is not None else nullcontext())
        self._pointer = pointer
        self._parent = parent
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._users: list[int] = []  # ids of the threads inside use(), protected by the lock
        self._lock = threading.RLock()
        self._left = threading.Condition(self._lock)  # notified if the handle is closing
        self._closing = False
        # The arguments must not refer to self: the handle would keep itself alive.
        self._finalizer = weakref.finalize(self, _free, free, pointer, self._users, self._lock)
        if parent is not None:
            parent._children.add(self)

    @property
    def pointer(self) -> Any:
        """The C pointer. Raises ClosedError after close()."""
        if self._closing or not self._finalizer.alive:
            raise ClosedError(f"{type(self).__name__} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        """Whether the pointer has been freed."""
        return not self._finalizer.alive

    def use(self) -> AbstractContextManager[Any]:
        """Gives the C pointer, which is not freed inside the block. Raises ClosedError after close()."""
        return _Use(self)

    def close(self) -> None:
        """Wait for other threads to leave use(), then free the pointer, children first. A second call does nothing."""
        thread = threading.get_ident()
        with self._left:
            self._closing = True
            while any(user != thread for user in self._users) and not is_lost():
                self._left.wait(_TICK_S)
        if is_lost():
            return
        for child in list(self._children):
            child.close()
        with self.call:
            self._finalizer()


class _Use:
    """See Handle.use(). Not a generator: after a decode the processor's caches are cold, and every call counts."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __enter__(self) -> Any:
        handle = self._handle
        with handle._lock:
            pointer = handle.pointer
            handle._users.append(threading.get_ident())
        return pointer

    def __exit__(self, *_: object) -> None:
        handle = self._handle
        with handle._lock:
            handle._users.remove(threading.get_ident())
            if handle._closing:
                handle._left.notify_all()


def _free(free: Callable[[Any], object], pointer: Any, users: list[int], lock: AbstractContextManager[bool]) -> None:
    """Free the pointer, unless a daemon thread is using it at the interpreter's exit."""
    with lock:
        if not users:
            free(pointer)
