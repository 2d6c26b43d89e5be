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

_FDS = Path("/proc/self/fd")
HAS_TCP_INFO = _FDS.is_dir() and hasattr(socket, "TCP_INFO")
_CONNECT_S = 1.0
# linux/tcp.h, struct tcp_info, and indices of its fields
_TCP_INFO = struct.Struct("=8B24I4Q")
_LAST_DATA_SENT, _LAST_DATA_RECV = 8 + 9, 8 + 11  # ms ago
_BYTES_ACKED, _BYTES_RECEIVED = 8 + 24 + 2, 8 + 24 + 3


def split_endpoint(server: str) -> tuple[str, int]:
    """Split `host:port`, where the host is a name or an IPv4 address. Raises ValueError."""
    host, _, port = server.rpartition(":")
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(server)
    return host, int(port)


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
    return sum(info[_BYTES_ACKED] + info[_BYTES_RECEIVED] for _, info in _connections(servers))


def unanswered(servers: Sequence[str]) -> list[str]:
    """The servers that have sent nothing since data was last sent to them."""
    late = [server for server, info in _connections(servers) if info[_LAST_DATA_RECV] > info[_LAST_DATA_SENT]]
    return list(dict.fromkeys(late))


def refuses(server: str) -> bool:
    """Whether the server accepts no connection."""
    try:
        socket.create_connection(split_endpoint(server), _CONNECT_S).close()
    except (OSError, UnicodeError):
        return True
    return False


def _connections(servers: Sequence[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """This process's connections to these servers, each with its tcp_info. Empty without /proc."""
    by_peer = {peer: server for server in servers if (peer := resolved(server)) is not None}
    with suppress(OSError):
        for entry in os.listdir(_FDS):  # noqa: PTH208 - the listing's own descriptor is in it
            with suppress(OSError):
                fd = int(entry)
                if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                    continue
                with socket.socket(fileno=os.dup(fd)) as connection:
                    is_ipv4 = connection.family == socket.AF_INET
                    server = by_peer.get(connection.getpeername()) if is_ipv4 else None
                    if server is None:
                        continue
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                    yield server, _TCP_INFO.unpack(info.ljust(_TCP_INFO.size, b"\0"))  # older kernels: fewer fields
