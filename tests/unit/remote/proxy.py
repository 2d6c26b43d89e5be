"""A proxy between draft workers and their lead that delays, drops, duplicates, reorders and corrupts messages."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.sync.server import ServerConnection, serve

from duo.http.guard import ROUTE


class Proxy:
    """Listens on a free port of this machine, and passes on what workers and the lead at `lead_port` send.

    Each message takes a millisecond. `cut`, `twice`, `swap` and `spoil` are the chances that a message ends the
    connection, arrives twice, is overtaken by the next one, or has a byte changed. `counts` tells how often that was.
    """

    def __init__(self, lead_port: int, **chances: float) -> None:
        self.counts: Counter[str] = Counter()
        self._lead = f"ws://127.0.0.1:{lead_port}{ROUTE}"
        self._chances = chances
        self._server = serve(self._serve, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None)
        self.port: int = self._server.socket.getsockname()[1]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, name="proxy").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def _serve(self, worker: ServerConnection) -> None:
        """One worker, from its connection to its end."""
        n = self.counts["connections"]
        self.counts["connections"] += 1
        with (
            suppress(OSError, WebSocketException),  # without a lead the worker is disconnected
            connect(self._lead, compression=None, max_size=None, ping_interval=None, proxy=None) as lead,
            ThreadPoolExecutor(2) as pool,
        ):
            pool.submit(self._pass_on, worker, lead, Random(f"{n} to lead"))
            pool.submit(self._pass_on, lead, worker, Random(f"{n} to worker"))

    def _pass_on(self, source: Connection, sink: Connection, dice: Random) -> None:
        """One direction, until either end is closed. The first message, Hello or Welcome, is only delayed."""
        overtaken: list[str | bytes] = []
        with suppress(ConnectionClosed):
            sink.send(source.recv())
            for message in source:
                time.sleep(0.001)
                happens = {what for what, chance in self._chances.items() if dice.random() < chance}
                self.counts.update(happens)
                passed = [_spoilt(message, dice) if "spoil" in happens else message] * (1 + ("twice" in happens))
                if "swap" in happens:
                    overtaken += passed
                else:
                    for one in (*passed, *overtaken):
                        sink.send(one)
                    overtaken.clear()
                if "cut" in happens:
                    for end in (source, sink):
                        with suppress(OSError):
                            end.socket.shutdown(socket.SHUT_RDWR)
        sink.close()


def _spoilt(message: str | bytes, dice: Random) -> bytes:
    """The same with one byte changed."""
    data = bytearray(message.encode() if isinstance(message, str) else message)
    data[dice.randrange(len(data))] ^= dice.randrange(1, 256)
    return bytes(data)
