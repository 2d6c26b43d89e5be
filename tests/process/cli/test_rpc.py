"""Models on RPC servers: real servers that are killed, stopped and restarted."""

import json
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from duo.llama.library import supports_rpc
from tests.command import SLOW_TARGET, Argument, duo, gated_target, models
from tests.serving import LeadProcess, RpcServer, Served, free_port
from tests.unit.cli import runner

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

TEXT = ("-p", "the cat sat on the mat and", "-n", "32", "--ignore-eos", "--exact", "-t", "1")
ASYNC = ("--schedule", "async")
IMPATIENT = ("--rpc-timeout", "2")
WEIGHTS = 50_000  # bytes that have passed while more of a model's weights are to come

# Code for `before`: prints a line when the target's prefill and each later decode begins.
TELL = """
import sys
from duo.llama.context import Context
tell = Context.decode
def telling(self, tokens, n_rows=1):
    sys.stderr.write(f"decoding {len(tokens)}\\n")
    return tell(self, tokens, n_rows)
Context.decode = telling
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    with RpcServer() as first, RpcServer() as second, RpcServer() as third:
        yield [first.name, second.name, third.name]


@pytest.fixture
def pair(kin: dict[str, Path]) -> list[Argument]:
    """A target of two layers, which two servers can share, and a draft."""
    return models(kin["gemma"], kin["llama"])


@pytest.fixture
def plain(kin: dict[str, Path]) -> bytes:
    """What the target generates on this machine alone."""
    return runner.duo("-m", kin["gemma"], *TEXT).stdout


@pytest.mark.parametrize("where", ["--rpc {0},{1} -ts 1,1 -ngl 99 --rpcd {2}", "--rpc {0} --rpcd none -td 1"])
def test_the_text_is_the_same_wherever_the_models_are(
    pair: list[Argument], servers: list[str], plain: bytes, tmp_path: Path, where: str
) -> None:
    report = tmp_path / "run.json"
    run = duo(*pair, *TEXT, *ASYNC, "--json", report, "-v", *where.format(*servers).split(), before=SLOW_TARGET)
    assert (run.status, run.stdout, run.warnings) == (0, plain, [])
    assert json.loads(report.read_text())["draft"]["accepted"] > 0
    assert "--rpcd none" not in where or f"[{servers[0]}] model buffer size" in run.stderr


# Servers that fail


class Relay(ThreadingTCPServer):
    """Passes on everything, and acts once: when the clients have sent `n_bytes` to the server at `port`."""

    daemon_threads, block_on_close = True, False

    def __init__(self, port: int, n_bytes: int, act: Callable[[], object]) -> None:
        super().__init__(("127.0.0.1", 0), BaseRequestHandler)
        self.name = "{}:{}".format(*self.server_address)
        self._port, self._n_left, self._act, self._lock = port, n_bytes, act, threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def finish_request(self, request: Any, client_address: object) -> None:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", self._port))) as server:
            threading.Thread(target=self._pump, args=(server, request), daemon=True).start()
            self._pump(request, server, counted=True)

    def _pump(self, source: socket.socket, sink: socket.socket, *, counted: bool = False) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    due = counted and 0 < self._n_left <= len(data)
                    self._n_left -= counted * len(data)
                if due:
                    self._act()
                sink.sendall(data)
        for end in (source, sink):  # or what a peer still sends would be waited for
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def run_with_failure(options: list[Argument], phase: str, number: signal.Signals, n_decodes: int) -> tuple[Served, str]:
    """A run whose server gets a signal while it loads, or after `n_decodes`; and the server's name."""
    with ExitStack() as stack:
        server = stack.enter_context(RpcServer())
        name = server.name
        if phase == "loading":
            name = stack.enter_context(Relay(server.port, WEIGHTS, lambda: server.send_all(number))).name
        run: Served = stack.enter_context(Served(*options, *IMPATIENT, "--rpc", name, before=SLOW_TARGET + TELL))
        if phase == "decoding":
            run.wait_for("decoding", n=n_decodes)
            server.send_all(number)
        run.finish()
    return run, name


# That the process that drafts is killed within a text: see tests/process/remote/test_process.py.
@pytest.mark.parametrize(("phase", "number"), [("loading", signal.SIGKILL), ("decoding", signal.SIGSTOP)])
def test_the_target_continues_when_the_drafts_server_fails(
    pair: list[Argument], plain: bytes, phase: str, number: signal.Signals
) -> None:
    run, _ = run_with_failure([*pair, *TEXT, *ASYNC], phase, number, n_decodes=8)
    assert (run.finish(), run.stdout) == (0, plain)
    assert not any("Traceback" in line or "error" in line for line in run.lines)
    assert phase != "loading" or any(line.startswith("duo: warning: the draft on ") for line in run.lines)


@pytest.mark.parametrize(
    ("phase", "number"), [("loading", signal.SIGKILL), ("decoding", signal.SIGKILL), ("decoding", signal.SIGSTOP)]
)
def test_the_text_so_far_is_written_when_the_targets_server_fails(
    kin: dict[str, Path], plain: bytes, phase: str, number: signal.Signals
) -> None:
    # The stopped server: within the prefill.
    n_decodes = 12 if number is signal.SIGKILL else 1
    run, name = run_with_failure(["-m", kin["gemma"], *TEXT, "-ngl", "99"], phase, number, n_decodes)
    assert run.finish() == 1
    assert plain.startswith(run.stdout)
    assert bool(run.stdout) == ((phase, number) == ("decoding", signal.SIGKILL))
    (said,) = (line for line in run.lines if not line.startswith("decoding") and " reports all of its " not in line)
    assert said.startswith(f"duo: error: the RPC server {name} ")


def test_a_draft_is_used_again_when_its_server_is_back(pair: list[Argument], tmp_path: Path, plain: bytes) -> None:
    port, report, gate = free_port(), tmp_path / "run.json", tmp_path / "gate"
    options = (*pair, *TEXT, *ASYNC, "--rpc", f"127.0.0.1:{port}", "--json", report)
    with Served(*options, before=gated_target(gate)) as run:
        run.wait_for("cannot be reached.*the target ")
        with RpcServer(port=port):
            run.wait_for("connected again")
            gate.touch()
            assert run.finish() == 0
    assert run.stdout == plain
    assert json.loads(report.read_text())["draft"]["drafted"] > 0


def test_clients_of_a_lead_are_told_that_its_target_is_lost(kin: dict[str, Path]) -> None:
    with RpcServer() as server, LeadProcess(kin["gemma"], "--rpc", server.name, *IMPATIENT, before=SLOW_TARGET) as lead:
        text = lead.stream("the cat", 400)
        text.wait_for_pieces(3)
        server.send_all(signal.SIGKILL)
        with pytest.raises(AssertionError, match="RPC server"):
            text.finish()
        assert lead.finish() == 1
        assert any(f"duo: error: the RPC server {server.name}" in line for line in lead.lines)


def test_the_drafts_process_ends_with_the_process_that_started_it(pair: list[Argument]) -> None:
    with RpcServer("-v") as server, Served(*pair, *TEXT, "--rpc", server.name, before=SLOW_TARGET + TELL) as run:
        run.wait_for("decoding", n=4)
        n_closed = sum("Client connection closed" in line for line in server.lines)
        run.send(signal.SIGKILL)
        # Its connection is the one that is still open.
        server.wait_for("Client connection closed", n=n_closed + 1)


# duo rpc-server itself


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_stops_a_server_and_leaves_no_child(number: signal.Signals) -> None:
    with RpcServer("-H", "0.0.0.0", "--insecure-bind") as server:
        server.send(number)
        # It waits for the end of stderr, which a child would hold open.
        assert server.finish() == (0 if number is signal.SIGTERM else -number)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


def test_a_killed_child_is_reported() -> None:
    with RpcServer() as server:
        server.send_to_children(signal.SIGKILL)
        assert server.finish() == 1
        assert "duo: error: the server " in server.lines[-1]


# -ngl auto, where the free memory is scripted

DEMO = ("-p", "def fibonacci(n):\n    ", "-n", "4", "--ignore-eos", "-t", "1")
# Code for `before`: so much memory is free on each device, in MiB, beside the margin.
FREE = """
from duo.llama.devices import Device
from duo.models.placement import MARGIN
Device.memory = property(lambda self: ({}.get(self.name, 0) * 2**20 + MARGIN, 2**40))
"""


@pytest.mark.parametrize("free", [{"RPC0": 0}, {"RPC0": 200, "RPC1": 120}])
def test_as_many_layers_as_fit(demo_pair: tuple[Path, Path], servers: list[str], free: dict[str, int]) -> None:
    run = duo("-m", demo_pair[0], *DEMO, "-v", "--rpc", ",".join(servers[: len(free)]), before=FREE.format(free))
    (offloaded,) = re.findall(r"offloaded (\d+)/31 layers", run.stderr)
    assert int(offloaded) in (range(5, 31) if free["RPC0"] else range(1))
    where = f" on {', '.join(free)}" if free["RPC0"] else ""
    assert f"duo: layers on devices (-ngl): target {offloaded} of 31{where}\n" in run.stderr
    for name, size in re.findall(r"(RPC\d)\[.*?\] model buffer size = +(\d+)", run.stderr):
        assert int(size) <= free[name]
