"""Lifeline: an end with a clear word where llama.cpp would abort the process or wait for ever.

It does both with servers of other machines: it aborts when one dies, and waits when one stalls. Nothing can be called
again after that, so the process has to end; but not before the text so far is written.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from llama_cpp._ggml import libggml

from duo.errors import DeviceError
from duo.llama import connections

_TICK_S = 0.25
_SUSPENDED_S = 4 * _TICK_S
_QUIET_S = 1.0  # before it is worth looking whether anything moves
_LOADING = 10  # times as long
_LAST_WORDS_S = 1.5  # for the main thread to write what there is

_lost = threading.Event()
_listeners: list[Callable[[DeviceError], None]] = []


class Lifeline:
    """Watches calls of llama.cpp that need other machines: `with` surrounds each."""

    def __init__(self) -> None:
        self.servers: list[str] = []
        self._patience_s = 0.0
        self._depth = 0  # calls in progress
        self._since = 0.0  # of the last sign of life
        self.is_loading = False  # weights are being sent
        self._looked_at = (0.0, 0)  # since when it was quiet, and the bytes that had moved

    def watch(self, server: str, patience_s: float) -> None:
        """This server, host:port, gives a sign of life at least every `patience_s` seconds while it is called."""
        self._patience_s = patience_s
        if not self.servers:
            catch_aborts()
            threading.Thread(target=self._run, name="duo-lifeline", daemon=True).start()
        if server not in self.servers:
            self.servers.append(server)

    def __enter__(self) -> None:
        """A call begins."""
        self._since = time.monotonic()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """It has ended."""
        self._depth -= 1

    def beat(self) -> None:
        """A sign of life in the middle of a call."""
        self._since = time.monotonic()

    def _run(self) -> None:
        woke = time.monotonic()
        while True:
            time.sleep(_TICK_S)
            slept_s, woke = time.monotonic() - woke, time.monotonic()
            if slept_s > _SUSPENDED_S:
                self.beat()  # this process stood still, not the server
            since = self._since
            silent_s = time.monotonic() - since
            if not self._depth or silent_s < _QUIET_S:
                continue
            before, self._looked_at = self._looked_at, (since, connections.n_bytes(self.servers))
            if before[0] == since and before != self._looked_at:
                self.beat()  # weights may travel for long between two signs of life
            elif silent_s > self._limit_s() and self._depth and self._since == since:
                which = " or ".join(connections.owing(self.servers) or self.servers)
                _die(
                    f"the RPC server {which} has not answered for {self._limit_s():g} s, the longest that was to be "
                    "waited: it hangs or is very slow"
                )

    def _limit_s(self) -> float:
        # Where nobody tells that bytes move, a tensor may be on its way.
        return self._patience_s * (_LOADING if self.is_loading and not connections.TELLS else 1)


lifeline = Lifeline()  # of the process, because what ends is the process


def catch_aborts() -> None:
    """From now on llama.cpp ends the process through here when it gives up."""
    libggml.ggml_set_abort_callback.argtypes = [type(_on_abort)]
    libggml.ggml_set_abort_callback.restype = ctypes.c_void_p
    libggml.ggml_set_abort_callback(_on_abort)


def is_lost() -> bool:
    """Whether the process is about to end: llama.cpp must not be called, and a thread of it not be waited for."""
    return _lost.is_set()


@contextmanager
def told(listener: Callable[[DeviceError], None]) -> Iterator[None]:
    """Inside the block `listener` is told, on another thread, what the process is about to end of.

    It has a moment to let the main thread raise that, write what there is, and end the process.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes) -> None:
    """Called by ggml_abort(), on any thread; must not return."""
    where, _, what = message.decode("utf-8", "replace").strip().partition(": ")
    if "RPC" in what or "ggml-rpc" in where or "Failed to connect" in what:
        which = " or ".join(filter(connections.refuses, lifeline.servers)) or " or ".join(lifeline.servers)
        _die(f"the RPC server {which} has died, or speaks another version of the protocol")
    _die(f"llama.cpp gave up: {what} ({Path(where).name})")


def _die(message: str) -> NoReturn:
    """End the process with status 1 after its last words. Never returns."""
    first = not _lost.is_set()
    _lost.set()
    if first and _listeners and threading.current_thread() is not threading.main_thread():
        for listener in list(_listeners):
            listener(DeviceError(message))
        time.sleep(_LAST_WORDS_S)
    elif not first:
        time.sleep(2 * _LAST_WORDS_S)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"duo: error: {message}\n")
        sys.stderr.flush()
    os._exit(DeviceError.exit_status)
