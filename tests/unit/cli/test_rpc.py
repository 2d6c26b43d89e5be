"""--rpc: servers that cannot be reached or do not answer, as scripted sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import ONE_EACH, assert_refused, models
from tests.serving import free_port
from tests.unit.cli.runner import duo

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

TEXT = ("-p", "the cat", "-n", "4", *ONE_EACH)


@pytest.mark.parametrize(
    ("server", "why"),
    [("127.0.0.1:{port}", "refused"), ("no-such-host.invalid:50052", ""), ("a..b:1", "invalid host name")],
)
def test_a_server_that_cannot_be_reached(tiny: Path, server: str, why: str) -> None:
    name = server.format(port=free_port())
    assert_refused(duo("-m", tiny, *TEXT, "--rpc", name), f"{name} cannot be reached", why)


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that answers each connection with these bytes and closes it; None: it accepts and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.sendall(answer or b"")
            connection.close()

        thread = threading.Thread(target=serve) if answer is not None else None
        if thread is not None:
            thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        if thread is not None:
            thread.join()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_another_protocol(tiny: Path, answer: bytes) -> None:
    with answering(answer) as name:
        assert_refused(duo("-m", tiny, *TEXT, "--rpc", name), name)


def test_a_server_that_hangs_or_has_another_client(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duo.llama.devices._PROBE_S", 0.1)
    with answering(None) as name:
        run = duo("-m", tiny, *TEXT, "--rpc", name)
    assert_refused(run, f"the RPC server {name} does not answer", "another client")


def test_without_drafting_the_drafts_server_is_not_used(tiny: Path) -> None:
    run = duo(*models(tiny, tiny), *TEXT, "--rpc", f"127.0.0.1:{free_port()}", "--draft", "0")
    assert (run.status, run.warnings) == (0, [])
