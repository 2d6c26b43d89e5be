"""A proxy between draft workers and their lead that ends connections and corrupts messages."""

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

    Each message takes a millisecond. `cut`, `twice` and `spoil` are the chances that a message ends the connection,
    arrives twice, or has a byte changed. `counts` tells how often that was.
    """

    def __init__(self, lead_port: int, **chances: float) -> None:
        self.counts: Counter[str] = Counter()
        self._lead = f"ws://127.0.0.1:{lead_port}{ROUTE}"
        self._chances = chances
        self._dice = Random(1)
        self._server = serve(self._serve, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None)
        self.port: int = self._server.socket.getsockname()[1]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, name="proxy").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def _serve(self, worker: ServerConnection) -> None:
        """One worker, from its connection to its end."""
        with (
            suppress(OSError, WebSocketException),  # without a lead the worker is disconnected
            connect(self._lead, compression=None, max_size=None, ping_interval=None, proxy=None) as lead,
            ThreadPoolExecutor(2) as pool,
        ):
            pool.submit(self._pass_on, worker, lead)
            pool.submit(self._pass_on, lead, worker)

    def _pass_on(self, source: Connection, sink: Connection) -> None:
        """One direction, until either end is closed. The first message, Hello or Welcome, arrives as it is."""
        with suppress(ConnectionClosed):
            sink.send(source.recv())
            for message in source:
                time.sleep(0.001)
                happens = {what for what, chance in self._chances.items() if self._dice.random() < chance}
                self.counts.update(happens)
                data = bytearray(message if isinstance(message, bytes) else message.encode())
                data[self._dice.randrange(len(data))] ^= "spoil" in happens and self._dice.randrange(1, 256)
                for _ in range(1 + ("twice" in happens)):
                    sink.send(bytes(data))
                if "cut" in happens:
                    for end in (source, sink):
                        with suppress(OSError):
                            end.socket.shutdown(socket.SHUT_RDWR)
        sink.close()
