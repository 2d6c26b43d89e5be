"""A TCP relay that acts when the clients have sent a number of bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """Listens on a free port of this machine and passes on everything, in both directions."""

    def __init__(self, port: int, n_bytes: int, act: Callable[[], object]) -> None:
        """`act` is called once, when the clients have sent `n_bytes` to the server at `port`."""
        self._port = port
        self._n_left = n_bytes
        self._act = act
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.name = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listening, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    self._count(len(data))
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()  # or what a peer still sends would be waited for

    def _count(self, n: int) -> None:
        with self._lock:
            due = 0 < self._n_left <= n
            self._n_left -= n
        if due:
            self._act()
