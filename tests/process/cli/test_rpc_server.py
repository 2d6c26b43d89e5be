"""`duo rpc-server`: signals, and the address it binds."""

from __future__ import annotations

import signal
import socket

import pytest

from duo.llama.library import supports_rpc
from tests.serving import RpcServer, send_to_children

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")


def test_a_signal_stops_it_and_frees_the_port() -> None:
    with RpcServer("-H", "0.0.0.0", "--insecure-bind") as server:
        assert not _is_free(server.port)
        server.send(signal.SIGTERM)
        assert server.finish() == 0
        assert _is_free(server.port)


def test_a_killed_process_leaves_no_child() -> None:
    with RpcServer() as server:
        server.send(signal.SIGKILL)
        server.finish()  # waits for the end of stderr, which the child holds open
        assert _is_free(server.port)


def test_a_killed_child_is_reported() -> None:
    with RpcServer() as server:
        send_to_children(server.process.pid, signal.SIGKILL)
        assert server.finish() == 1
        assert "duo: error: the server " in server.lines[-1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
