"""Models on RPC servers: real servers that are killed, stopped and restarted."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import SLOW_TARGET, Argument, duo, gated_target, models
from tests.relay import Relay
from tests.serving import LeadProcess, RpcServer, Served, free_port
from tests.unit.cli import runner

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

N = 32
TEXT = ("-p", "the cat sat on the mat and", "-n", str(N), "--ignore-eos", "--exact", "-t", "1")
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


@pytest.mark.parametrize(
    "where",
    [
        "--rpc {0}",  # the draft
        "--rpc {0} --rpcd {1}",
        "--rpc {0},{1} -ts 1,1 -ngl 99 --rpcd {2}",
        "--rpc {0} --rpcd none -td 1",  # the target
    ],
)
def test_the_text_is_the_same_wherever_the_models_are(
    pair: list[Argument], servers: list[str], plain: bytes, tmp_path: Path, where: str
) -> None:
    report = tmp_path / "run.json"
    run = duo(*pair, *TEXT, *ASYNC, "--json", report, "-v", *where.format(*servers).split(), before=SLOW_TARGET)
    assert (run.status, run.stdout, run.warnings) == (0, plain, [])
    assert json.loads(report.read_text())["draft"]["accepted"] > 0
    for server in servers:
        if server in where.format(*servers) and "--rpcd none" in where:
            assert f"[{server}] model buffer size" in run.stderr


# Servers that fail


@pytest.mark.parametrize(
    ("phase", "number"),
    [("loading", signal.SIGKILL), ("generating", signal.SIGKILL), ("generating", signal.SIGSTOP)],
)
def test_the_target_continues_when_the_drafts_server_fails(
    pair: list[Argument], plain: bytes, phase: str, number: signal.Signals
) -> None:
    options = (*pair, *TEXT, *ASYNC, *IMPATIENT, "--rpc")
    with RpcServer() as server:
        if phase == "loading":
            with (
                Relay(server.port, WEIGHTS, lambda: server.send_all(number)) as relay,
                Served(*options, relay.name, before=SLOW_TARGET) as run,
            ):
                run.wait_for("duo: warning: the draft on ")
                assert run.finish() == 0
        else:
            with Served(*options, server.name, before=SLOW_TARGET + TELL) as run:
                run.wait_for("decoding", n=8)
                server.send_all(number)
                assert run.finish() == 0
    assert run.stdout == plain
    assert not any("Traceback" in line or "error" in line for line in run.lines)


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


@pytest.mark.parametrize(
    ("phase", "number"),
    [("loading", signal.SIGKILL), ("prefill", signal.SIGSTOP), ("generating", signal.SIGKILL)],
)
def test_the_text_so_far_is_written_when_the_targets_server_fails(
    kin: dict[str, Path], plain: bytes, phase: str, number: signal.Signals
) -> None:
    options = ("-m", kin["gemma"], *TEXT, *IMPATIENT, "-ngl", "99", "--rpc")
    with RpcServer() as server:
        name = server.name
        if phase == "loading":
            with (
                Relay(server.port, WEIGHTS, lambda: server.send_all(number)) as relay,
                Served(*options, relay.name) as run,
            ):
                status, name = run.finish(), relay.name
        else:
            with Served(*options, name, before=SLOW_TARGET + TELL) as run:
                run.wait_for("decoding", n=1 if phase == "prefill" else 12)
                server.send_all(number)
                status = run.finish()
    said = [line for line in run.lines if not line.startswith("decoding")]
    assert status == 1
    assert plain.startswith(run.stdout)
    assert bool(run.stdout) == (phase == "generating")
    assert len(said) == 1, said
    assert said[0].startswith(f"duo: error: the RPC server {name} ")


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


def _outage(seconds: float) -> None:
    """The time for which a process is suspended is what is tested here."""
    threading.Event().wait(seconds)
