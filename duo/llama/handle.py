"""Ownership of one C pointer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from duo.errors import ClosedError
from duo.llama.lifeline import is_lost


class Handle:
    """Owns a C pointer and frees it once: at close(), when collected, or at exit.

    Children close before their parent, and a child keeps its parent alive.
    """

    def __init__(self, pointer: Any, free: Callable[[Any], object], parent: Handle | None = None) -> None:
        self._pointer = pointer
        self._parent = parent
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        # `free` must not refer to self: the handle would keep itself alive.
        self._finalizer = weakref.finalize(self, free, pointer)
        if parent is not None:
            parent._children.add(self)

    @property
    def pointer(self) -> Any:
        """The C pointer. Raises ClosedError after close()."""
        if not self._finalizer.alive:
            raise ClosedError(f"{type(self).__name__} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        """Whether the pointer has been freed."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Free the pointer, children first. A second call does nothing."""
        if is_lost():
            return
        for child in list(self._children):
            child.close()
        self._finalizer()
