"""The relay forwards bytes in order, after its delay."""

from __future__ import annotations

import socket
import threading
import time

from duo.bench.relay import Relay


def test_a_relay_forwards_in_order() -> None:
    asked = bytes(range(256)) * 4096
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Relay(server.getsockname()[1], 0.001) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as client,
        server.accept()[0] as connection,
    ):
        sender = threading.Thread(target=client.sendall, args=(asked,))
        sender.start()
        found = b""
        while len(found) < len(asked):
            found += connection.recv(1 << 16)
        sender.join()
        connection.sendall(b"answer")
        assert (found, client.recv(6)) == (asked, b"answer")
        relay.delay_s = 0.2
        client.sendall(b"first")
        time.sleep(0.05)  # so that the relay has read it
        relay.delay_s = 0.0
        client.sendall(b", second")
        while len(found) < len(asked) + 13:
            found += connection.recv(13)
        assert found == asked + b"first, second"
