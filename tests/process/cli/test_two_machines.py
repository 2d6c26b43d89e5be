"""Two machines in miniature: network namespaces that a virtual cable connects, with 1 ms of delay where supported.

Skipped where the tests may not create namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import SLOW_TARGET, gated_target, models
from tests.serving import RpcServer, Served
from tests.unit.cli import runner

TEXT = ("-p", "the cat sat on the mat and", "-n", "32", "--ignore-eos", "--exact", "-t", "1", "--schedule", "async")
LEAD, REMOTE = f"duo{os.getpid()}a", f"duo{os.getpid()}b"
LEAD_ADDRESS, REMOTE_ADDRESS = "10.213.7.1", "10.213.7.2"

needs_rpc = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module", autouse=True)
def cable() -> Iterator[None]:
    try:
        for name in (LEAD, REMOTE):
            _ip("netns", "add", name)
        _ip("link", "add", "duo0", "netns", LEAD, "type", "veth", "peer", "name", "duo1", "netns", REMOTE)
        for name, device, address in ((LEAD, "duo0", LEAD_ADDRESS), (REMOTE, "duo1", REMOTE_ADDRESS)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            for each in ("lo", device):
                _ip("-n", name, "link", "set", each, "up")
            delay = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms"]
            subprocess.run(delay, check=False, capture_output=True)  # not supported by every kernel
        yield
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces cannot be created")
    finally:
        for name in (LEAD, REMOTE):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def plain(kin: dict[str, Path]) -> bytes:
    return runner.duo("-m", kin["lfm2"], *TEXT).stdout


def _on(name: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", name)


def test_a_back_on_the_remote_machine(kin: dict[str, Path], plain: bytes, tmp_path: Path) -> None:
    options = ("-m", kin["lfm2"], *TEXT, "--back-port", "0", "--back-host", LEAD_ADDRESS, "--back-token", "secret")
    with Served(*options, before=gated_target(tmp_path / "gate"), under=_on(LEAD)) as run:
        port = run.wait_for(r"at ws://[\d.]+:(\d+)")[1]
        back_options = ("--lead", f"ws://{LEAD_ADDRESS}:{port}", "--token", "secret", "-t", "1")
        with Served("back", "-m", kin["llama"], *back_options, under=_on(REMOTE)) as back:
            back.wait_for("connected to the lead")
            (tmp_path / "gate").touch()
            run.wait_for("draft .* is in use")
            assert run.finish() == 0
    assert run.stdout == plain


@needs_rpc
def test_a_draft_on_the_remote_machine_and_a_cable_that_is_pulled(
    kin: dict[str, Path], plain: bytes, tmp_path: Path
) -> None:
    report = tmp_path / "run.json"
    with RpcServer("-H", REMOTE_ADDRESS, "--insecure-bind", address=REMOTE_ADDRESS, under=_on(REMOTE)) as server:
        options = (*models(kin["lfm2"], kin["llama"]), *TEXT, "--rpc", server.name, "--rpc-timeout", "2")
        with Served(*options, "--json", report, before=SLOW_TARGET, under=_on(LEAD)) as run:
            assert run.finish() == 0
        assert run.stdout == plain
        assert json.loads(report.read_text())["draft"]["accepted"] > 0
        with Served(*options, before=gated_target(tmp_path / "gate"), under=_on(LEAD)) as run:
            _ip("-n", LEAD, "link", "set", "duo0", "down")
            try:
                run.wait_for("duo: warning: the draft on ")
                (tmp_path / "gate").touch()
                assert run.finish() == 0
            finally:
                _ip("-n", LEAD, "link", "set", "duo0", "up")
        assert run.stdout == plain
