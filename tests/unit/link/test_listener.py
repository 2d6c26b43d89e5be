"""Listener: what is left at its end."""

from __future__ import annotations

import socket
import threading

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duo.link.connection import Limits
from duo.link.listener import Listener


def test_the_connection_of_a_client_that_reads_nothing_is_closed_at_the_end() -> None:
    asked = threading.Event()

    async def long(_: Request) -> Response:
        asked.set()
        return Response(bytes(50_000_000))

    with Listener(Starlette(routes=[Route("/", long)]), "127.0.0.1", 0, Limits(grace_s=0)) as listener:
        client = socket.create_connection(("127.0.0.1", listener.port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert asked.wait(60)
    left = [c.status for c in psutil.Process().net_connections() if c.laddr.port == listener.port]
    client.close()
    assert psutil.CONN_ESTABLISHED not in left
