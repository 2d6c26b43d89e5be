"""Handle owns a C pointer. Lifeline ends the process with an error where llama.cpp would abort it or block forever.

llama.cpp aborts when an RPC server dies and blocks when one stalls. It cannot be called again after either, so the
process has to exit, but only once the text so far has been written.
"""

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from llama_cpp._ggml import libggml

from duo.errors import ClosedError, DeviceError
from duo.llama.limits import shortage

Call = AbstractContextManager[None]  # around a call into llama.cpp

_TICK_S = 0.25
_SUSPENDED_S = 4 * _TICK_S  # a longer tick means that this process was stopped
_LOADING_FACTOR = 20  # longer time limit while weights are sent: a large tensor takes long, without a sign of life
_EXIT_S = 1.5  # for the main thread to write its output

# `path`: the model file that llama.cpp is reading on this thread, or None. `needs`: the memory that this needs.
reading = threading.local()
_lost = threading.Event()
_listeners: list[Callable[[DeviceError], None]] = []


class Lifeline:
    """Watches calls into llama.cpp that use RPC servers: `with` surrounds each."""

    def __init__(self) -> None:
        self._servers: dict[str, None] = {}
        self._timeout_s = 0.0
        self._depth = 0  # calls in progress
        self._since = 0.0  # time of the last sign of life
        self.is_loading = False  # weights are being sent

    def watch(self, server: str, timeout_s: float) -> None:
        """Watch `server`, host:port: it times out after `timeout_s` seconds without a sign of life during a call."""
        self._timeout_s = timeout_s
        if not self._servers:
            threading.Thread(target=self._run, name="duo-lifeline", daemon=True).start()
        self._servers[server] = None

    @property
    def names(self) -> str:
        """The servers, for messages."""
        return f"the RPC server {' or '.join(self._servers)}"

    def __enter__(self) -> None:
        self.beat()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def beat(self) -> None:
        """Record a sign of life during a call."""
        self._since = time.monotonic()

    def _run(self) -> None:
        woke = time.monotonic()
        while True:
            time.sleep(_TICK_S)
            slept_s, woke = time.monotonic() - woke, time.monotonic()
            if slept_s > _SUSPENDED_S:
                self.beat()  # this process was stopped, not the server
            limit_s = self._timeout_s * (_LOADING_FACTOR if self.is_loading else 1)
            since = self._since
            if woke - since > limit_s and self._depth and self._since == since:
                _die(f"{self.names} did not answer within {limit_s:g} s: it hangs or is very slow")


lifeline = Lifeline()  # one per process, because it ends the process


def catch_aborts() -> None:
    """End the process with one line instead of SIGABRT when llama.cpp aborts, from now on."""
    libggml.ggml_set_abort_callback.argtypes = [type(_on_abort)]
    libggml.ggml_set_abort_callback.restype = ctypes.c_void_p
    libggml.ggml_set_abort_callback(_on_abort)


def is_lost() -> bool:
    """Whether the process is about to exit: llama.cpp must not be called, and its threads must not be joined."""
    return _lost.is_set()


@contextmanager
def notifying(listener: Callable[[DeviceError], None]) -> Iterator[None]:
    """Inside the block, `listener` gets the error that will end the process in a moment, on another thread."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes) -> None:
    """Called by ggml_abort() on any thread. Must not return."""
    where, _, what = message.decode("utf-8", "replace").strip().partition(": ")
    if "RPC" in what or "ggml-rpc" in where or "Failed to connect" in what:
        _die(f"{lifeline.names} has died or uses another version of the protocol")
    path = getattr(reading, "path", None)
    if short := shortage(what, getattr(reading, "needs", "more is needed")):
        _die(f"{path}: {short}" if path else short)
    blamed = f"{path}: the file is damaged, or needs another llama.cpp, which" if path else "llama.cpp"
    _die(f"{blamed} aborted: {what} ({Path(where).name})")


def _die(message: str) -> NoReturn:
    """Exit with status 1, after the listeners had time to act."""
    first = not _lost.is_set()
    _lost.set()
    if first and _listeners and threading.current_thread() is not threading.main_thread():
        for listener in list(_listeners):
            listener(DeviceError(message))
        time.sleep(_EXIT_S)
    elif not first:
        time.sleep(2 * _EXIT_S)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"duo: error: {message}\n")
        sys.stderr.flush()
    os._exit(DeviceError.exit_status)


class Handle:
    """Owns a C pointer and frees it once: at close(), when collected, or at exit.

    Children close before their parent, and a child keeps its parent alive. What another thread than the closing one
    may be running is inside use(), which close() waits for.
    """

    def __init__(
        self, pointer: Any, free: Callable[[Any], object], parent: "Handle | None" = None, call: Call | None = None
    ) -> None:
        """`call`: surrounds each call that may use an RPC server; by default the parent's."""
        self.call: Call = call or (parent.call if parent is not None else nullcontext())
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
