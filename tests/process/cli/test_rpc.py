"""Models on RPC servers: real servers that are killed, stopped and restarted."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import PATIENT, SLOW_TARGET, Argument, duo, gated_target, models
from tests.serving import LeadProcess, RpcServer, Served, free_port
from tests.unit.cli import runner

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

TEXT = ("-p", "the cat sat on the mat and", "-n", "32", "--ignore-eos", "--exact", "-t", "1")
ASYNC = ("--schedule", "async")
IMPATIENT = ("--rpc-timeout", "10")

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
    options = (*pair, *TEXT, *ASYNC, "--json", report, "-v", *where.format(*servers).split())
    run = duo(*options, before=PATIENT + SLOW_TARGET)
    assert (run.status, run.stdout, run.warnings) == (0, plain, [])
    assert json.loads(report.read_text())["draft"]["accepted"] > 0
    assert "--rpcd none" not in where or f"[{servers[0]}] model buffer size" in run.stderr


# Servers that fail


def run_with_failure(options: list[Argument], number: signal.Signals, n_decodes: int) -> tuple[Served, str]:
    """A run whose server gets a signal after `n_decodes`; and the server's name."""
    with RpcServer() as server, Served(*options, *IMPATIENT, "--rpc", server.name, before=SLOW_TARGET + TELL) as run:
        run.wait_for("decoding", n=n_decodes)
        server.send_all(number)
        run.finish()
    return run, server.name


# That the process that drafts is killed within a text: see tests/process/remote/test_process.py.
def test_the_target_continues_when_the_drafts_server_fails(pair: list[Argument], plain: bytes) -> None:
    run, _ = run_with_failure([*pair, *TEXT, *ASYNC], signal.SIGSTOP, n_decodes=8)
    assert (run.finish(), run.stdout) == (0, plain)
    assert not any("Traceback" in line or "error" in line for line in run.lines)


# The stopped server: within the prefill.
@pytest.mark.parametrize(("number", "n_decodes"), [(signal.SIGKILL, 12), (signal.SIGSTOP, 1)])
def test_the_text_so_far_is_written_when_the_targets_server_fails(
    kin: dict[str, Path], plain: bytes, number: signal.Signals, n_decodes: int
) -> None:
    run, name = run_with_failure(["-m", kin["gemma"], *TEXT, "-ngl", "99"], number, n_decodes)
    assert run.finish() == 1
    assert plain.startswith(run.stdout)
    assert bool(run.stdout) == (number is signal.SIGKILL)
    (said,) = (line for line in run.lines if not line.startswith("decoding") and " reports all of its " not in line)
    assert said.startswith(f"duo: error: the RPC server {name} ")


# That the process that drafts is killed within a text: see tests/process/remote/test_process.py.


def test_a_draft_is_used_again_when_its_server_is_back(pair: list[Argument], tmp_path: Path, plain: bytes) -> None:
    port, report, gate = free_port(), tmp_path / "run.json", tmp_path / "gate"
    options = (*pair, *TEXT, *ASYNC, "--rpc", f"127.0.0.1:{port}", "--json", report)
    with Served(*options, before=gated_target(gate, 0.3)) as run:  # the draft makes its context within the text
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
from duo.models.fitting import MARGIN
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
