"""`duo rpc-server`: stopped, killed and refused."""

from __future__ import annotations

import signal
import socket

import pytest

from duo.llama.library import supports_rpc
from tests.command import assert_refused, duo
from tests.serving import RpcServer, free_port, send_to_children

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped(number: signal.Signals) -> None:
    with RpcServer() as server:
        server.send(number)
        assert server.finish() == 0
        assert _is_free(server.port)


def test_nothing_is_left_when_it_is_killed() -> None:
    with RpcServer() as server:
        server.send(signal.SIGKILL)
        server.finish()  # waits for the end of stderr, which the other process holds open
        assert _is_free(server.port)


def test_it_says_when_its_process_is_killed() -> None:
    with RpcServer() as server:
        send_to_children(server.process.pid, signal.SIGKILL)
        assert server.finish() == 1
        assert "has ended by itself" in server.lines[-1]


def test_other_machines_are_kept_out() -> None:
    assert_refused(duo("rpc-server", "-H", "0.0.0.0"), "--insecure-bind", "SSH tunnel", status=2)


def test_unless_asked_for() -> None:
    with RpcServer("-H", "0.0.0.0", "--insecure-bind") as server:
        assert not _is_free(server.port)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(duo("rpc-server", "-p", str(port)), f"cannot listen on 127.0.0.1:{port}", status=2)


def test_a_device_that_there_is_not() -> None:
    assert_refused(duo("rpc-server", "-p", str(free_port()), "-d", "GPU99"), "no device GPU99", "CPU", status=2)


def test_nothing_to_serve() -> None:
    assert_refused(duo("rpc-server", "-p", str(free_port()), "-d", "none"), "-d none", status=2)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
