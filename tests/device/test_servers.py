"""Servers that use the device: `duo rpc-server`, and `duo lead` with a back on the same device."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import SLOW_TARGET, duo
from tests.serving import BackProcess, LeadProcess, Served, free_port, wait_until

PROMPT, N = "the cat sat on the mat and", 24
TEXT = ("-p", PROMPT, "-n", str(N), "--ignore-eos", "-fa", "off", "--lookup", "off", "-t", "1")
# Flash attention ends the process in Mesa 22.3, so there is no --exact. The tiny models have no near-ties.
ON_DEVICE = ("-ngl", "99", "-fa", "off")


@pytest.fixture
def server(gpu: str) -> Iterator[str]:
    """The address of an RPC server that serves the device: one for each test, because Mesa 22.3 may end a used one."""
    port = free_port()
    with Served("rpc-server", "-p", str(port), "-d", gpu) as served:
        served.wait_for(f"duo: serving {gpu}")
        yield f"127.0.0.1:{port}"
        served.send(signal.SIGTERM)
        assert served.finish() == 0


@pytest.fixture
def alone(gpu: str, pair: tuple[Path, Path]) -> bytes:
    """What the target writes on the device."""
    return duo("-m", pair[0], *TEXT, *ON_DEVICE, "-dev", gpu).stdout


def test_a_draft_on_an_rpc_server_on_the_device(pair: tuple[Path, Path], server: str, tmp_path: Path) -> None:
    target, draft = pair
    report = tmp_path / "run.json"
    text = (*TEXT, "-n", "100")  # long enough for a draft that is still loading when the target starts
    options = ("-ngl", "0", "--schedule", "async", "--rpc", server, "--json", report)
    run = duo("-m", target, "-md", draft, *text, *options, before=SLOW_TARGET)
    assert (run.status, run.warnings) == (0, []), run.stderr
    assert json.loads(report.read_text())["draft"]["accepted"] > 0
    assert run.stdout == duo("-m", target, *text, "-ngl", "0").stdout


def test_a_target_on_an_rpc_server_on_the_device(pair: tuple[Path, Path], server: str, alone: bytes) -> None:
    options = ("-td", "1", "-ngld", "0", "--schedule", "async", "--rpc", server, "--rpcd", "none", "-v")
    run = duo("-m", pair[0], "-md", pair[1], *TEXT, *ON_DEVICE, "-dev", "RPC0", *options)
    assert run.status == 0, run.stderr
    assert f"[{server}] model buffer size" in run.stderr
    assert run.stdout == alone


def test_a_lead_and_a_back_on_the_same_device(gpu: str, pair: tuple[Path, Path], alone: bytes) -> None:
    target, draft = pair
    options = ("-dev", gpu, *ON_DEVICE, "--lookup", "off", "--schedule", "async", "-c", "256")
    with LeadProcess(target, *options, "-v", before=SLOW_TARGET) as lead:
        lead.wait_for(f"{gpu} model buffer size")
        plain = lead.write(PROMPT, N)
        assert plain == alone.decode(errors="replace")
        with BackProcess(draft, lead.port, "-dev", gpu, *ON_DEVICE, "-v") as back:
            back.wait_for(f"{gpu} model buffer size")
            back.wait_for("connected to the lead")
            wait_until(lambda: lead.write(PROMPT, N) == plain and lead.n_accepted)
            back.send(signal.SIGTERM)
            assert back.finish() == 0
        assert lead.write(PROMPT, N) == plain, "without the back again"
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
