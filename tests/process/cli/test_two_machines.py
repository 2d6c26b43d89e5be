"""Two machines in miniature: network namespaces joined by a virtual cable, with 1 ms of delay where the kernel can.

Where the tests may not make namespaces there is nothing to see.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import SLOW_TARGET, duo
from tests.serving import RpcServer, Served

PROMPT = ("-p", "def fibonacci(n):\n    ", "-n", "48", "--ignore-eos", "--exact", "-t", "1", "--schedule", "async")
HERE, THERE = f"duo{os.getpid()}a", f"duo{os.getpid()}b"
HERE_ADDRESS, THERE_ADDRESS = "10.213.7.1", "10.213.7.2"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module", autouse=True)
def cable() -> Iterator[None]:
    try:
        for name in (HERE, THERE):
            _ip("netns", "add", name)
        _ip("link", "add", "duo0", "netns", HERE, "type", "veth", "peer", "name", "duo1", "netns", THERE)
        for name, device, address in ((HERE, "duo0", HERE_ADDRESS), (THERE, "duo1", THERE_ADDRESS)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            for each in ("lo", device):
                _ip("-n", name, "link", "set", each, "up")
            delay = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms"]
            subprocess.run(delay, check=False, capture_output=True)  # not every kernel can
        yield
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespaces here")
    finally:
        for name in (HERE, THERE):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _on(name: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", name)


@pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
def test_the_draft_on_the_other_machine(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    report = tmp_path / "run.json"
    with RpcServer("-H", THERE_ADDRESS, "--insecure-bind", address=THERE_ADDRESS, under=_on(THERE)) as server:
        options = ("-m", target, "-md", draft, *PROMPT, "--rpc", server.name, "--json", report)
        with Served(*options, before=SLOW_TARGET, under=_on(HERE)) as run:
            assert run.finish() == 0
    assert run.stdout == duo("-m", target, *PROMPT).stdout
    assert json.loads(report.read_text())["draft"]["accepted"] > 0


def test_a_back_on_the_other_machine(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    options = ("-m", target, *PROMPT, "--back-port", "0", "--back-host", HERE_ADDRESS, "--back-token", "secret")
    slowly = SLOW_TARGET.replace("0.05", "0.2")
    with Served(*options, before=slowly, under=_on(HERE)) as run:
        port = run.wait_for(r"taking drafts at ws://[\d.]+:(\d+)")[1]
        there = ("back", "-m", draft, "--lead", f"ws://{HERE_ADDRESS}:{port}", "--token", "secret", "-t", "1")
        with Served(*there, under=_on(THERE)) as back:
            back.wait_for("joined the lead")
            run.wait_for("draft .* works")
            assert run.finish() == 0
    assert run.stdout == duo("-m", target, *PROMPT).stdout


@pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
def test_the_cable_is_pulled(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    with RpcServer("-H", THERE_ADDRESS, "--insecure-bind", address=THERE_ADDRESS, under=_on(THERE)) as server:
        options = ("-m", target, "-md", draft, *PROMPT, "--rpc", server.name, "--rpc-timeout", "2")
        with Served(*options, before=SLOW_TARGET.replace("0.05", "0.2"), under=_on(HERE)) as run:
            _ip("-n", HERE, "link", "set", "duo0", "down")
            try:
                run.wait_for("the target goes on alone")
                assert run.finish() == 0
            finally:
                _ip("-n", HERE, "link", "set", "duo0", "up")
    assert run.stdout == duo("-m", target, *PROMPT).stdout
