"""A TCP relay that acts when the clients have sent a number of bytes."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import closing, suppress


class Relay:
    """Listens on a free port of this machine and passes on everything, in both directions."""

    def __init__(self, port: int, n_bytes: int, act: Callable[[], object]) -> None:
        """`act` is called once, when the clients have sent `n_bytes` to the server at `port`."""
        self._port, self._n_left, self._act = port, n_bytes, act
        self._lock = threading.Lock()
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                relay._pass_on(self.request)

        self._listening = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._listening.daemon_threads, self._listening.block_on_close = True, False
        self.name = "{}:{}".format(*self._listening.server_address)
        self._thread = threading.Thread(target=self._listening.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown()
        self._thread.join()
        self._listening.server_close()

    def _pass_on(self, client: socket.socket) -> None:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", self._port))) as server:
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            self._pump(client, server, counted=True)

    def _pump(self, source: socket.socket, sink: socket.socket, *, counted: bool = False) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    self._count(len(data))
                sink.sendall(data)
        for end in (source, sink):  # or what a peer still sends would be waited for
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, n: int) -> None:
        with self._lock:
            due = 0 < self._n_left <= n
            self._n_left -= n
        if due:
            self._act()
