"""Raw bytes over a socket: requests that may be wrong, and what comes back."""

import base64
import re
import socket
from contextlib import suppress
from typing import Protocol

from tests.serving import PATIENCE_S

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
TERMS = f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"


class Server(Protocol):
    """A Lead or a Listener."""

    port: int


def connect(server: Server, data: bytes = b"", *, window: int | None = None) -> socket.socket:
    """A connection that sends `data`; `window` is the size of the client's receive buffer."""
    link = socket.socket()
    link.settimeout(PATIENCE_S)
    if window is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    link.connect(("127.0.0.1", server.port))
    link.sendall(data)
    return link


def request(path: str, body: bytes = b"", *, length: int | None = None, more: str = "") -> bytes:
    n = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n{more}\r\n".encode() + body


def chunked(body: str, path: str = "/tokenize") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{body}".encode()


def handshake(first: str = "GET /v1/draft HTTP/1.1", headers: str = UPGRADE + TERMS, more: str = "") -> bytes:
    """Of a WebSocket."""
    return f"{first}\r\nHost: localhost\r\n{headers}{more}\r\n".encode()


def read_answer(link: socket.socket) -> tuple[int, bytes]:
    """Status and body of one answer that says how long it is."""
    data, end = b"", -1
    while end < 0 or len(data) < end:
        more = link.recv(65536)
        assert more, f"it was closed after {data!r}"
        data += more
        head, blank, _ = data.partition(b"\r\n\r\n")
        if blank:
            length = re.search(rb"^content-length: (\d+)", head.lower(), re.MULTILINE)
            end = len(head + blank) + int(length[1] if length else 0)
    return int(head.split()[1]), data[len(head + blank) :]


def read_to_the_end(link: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while more := link.recv(65536):
            data += more
    return data
