"""Traffic on this process's TCP connections to servers, as the operating system reports it."""

from __future__ import annotations

import functools
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from duo.config import split_endpoint

_FDS = Path("/proc/self/fd")
HAS_TCP_INFO = _FDS.is_dir() and hasattr(socket, "TCP_INFO")
_CONNECT_S = 1.0
# linux/tcp.h, struct tcp_info, and indices of its fields
_TCP_INFO = struct.Struct("=8B24I4Q")
_BYTES_ACKED, _BYTES_RECEIVED = 8 + 24 + 2, 8 + 24 + 3


@functools.cache
def resolved(server: str) -> tuple[str, int] | None:
    """The IPv4 address and port of `host:port`, as llama.cpp resolves it; None for an unknown host."""
    host, port = split_endpoint(server)
    try:
        return socket.gethostbyname(host), port
    except (OSError, UnicodeError):
        return None


def n_bytes(servers: Sequence[str]) -> int:
    """Bytes that these servers have acknowledged and sent; 0 without HAS_TCP_INFO."""
    return sum(info[_BYTES_ACKED] + info[_BYTES_RECEIVED] for info in _connections(servers))


def refuses(server: str) -> bool:
    """Whether the server accepts no connection."""
    try:
        socket.create_connection(split_endpoint(server), _CONNECT_S).close()
    except (OSError, UnicodeError):
        return True
    return False


def _connections(servers: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """The tcp_info of each of this process's connections to these servers. Empty without /proc."""
    peers = set(map(resolved, servers))
    with suppress(OSError):
        for entry in os.listdir(_FDS):  # noqa: PTH208 - the listing's own descriptor is in it
            with suppress(OSError):
                fd = int(entry)
                if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                    continue
                with socket.socket(fileno=os.dup(fd)) as connection:
                    if connection.family == socket.AF_INET and connection.getpeername() in peers:
                        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                        yield _TCP_INFO.unpack(info.ljust(_TCP_INFO.size, b"\0"))  # older kernels: fewer fields
