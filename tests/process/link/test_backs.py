"""Real backs that connect, disconnect, die and hang while a real lead writes: the text is the target's own."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from duo.config import ModelConfig
from duo.link import messages
from duo.link.client import hello
from duo.link.messages import GuessMessage
from duo.llama.model import Model
from tests.command import SLOW_TARGET
from tests.serving import BackProcess, LeadProcess, wait_until
from tests.unit.link.backs import frame, raw_websocket

PROMPT = "def fibonacci(n):\n    "
STORY = "Once upon a time, in a small village by the sea,"
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 3}
N = 32
TOKEN = "secret"
OPTIONS = ("--exact", "--schedule", "async", "-c", "512")
MIB = 2**20


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with LeadProcess(demo_pair[0], *OPTIONS, "--back-token", TOKEN, before=SLOW_TARGET) as lead:
        yield lead
        assert lead.process.poll() is None
        assert not any("Traceback" in line for line in lead.lines)


@pytest.fixture(scope="module")
def plain(lead: LeadProcess) -> dict[str, str]:
    """The texts of the lead before there is any back."""
    assert lead.metric("duo:worker_joins_total") == 0
    return {PROMPT: lead.write(PROMPT, N), STORY: lead.write(STORY, N), "sampled": lead.write(STORY, N, **SAMPLED)}


@pytest.fixture(autouse=True)
def alone(lead: LeadProcess, plain: dict[str, str]) -> None:
    """The backs of the test before have disconnected."""
    wait_until(lambda: lead.metric("duo:workers_connected") == 0)


def accepted(lead: LeadProcess) -> float:
    return lead.metric("spec_decode_num_accepted_tokens_total")


def connected(draft: Path, port: int) -> BackProcess:
    back = BackProcess(draft, port, "--token", TOKEN)
    back.wait_for("connected to the lead")
    return back


def write_until_accepted(lead: LeadProcess, plain: dict[str, str]) -> None:
    """Until a candidate was accepted: the back may not be ready yet."""
    before = accepted(lead)
    for _ in range(10):
        assert lead.write(PROMPT, N) == plain[PROMPT]
        if accepted(lead) > before:
            return
    pytest.fail("no candidate was accepted")


def test_backs_draft_and_exit_with_status_0(
    lead: LeadProcess, plain: dict[str, str], demo_pair: tuple[Path, Path]
) -> None:
    with connected(demo_pair[1], lead.port) as first, connected(demo_pair[1], lead.port) as second:
        write_until_accepted(lead, plain)
        assert lead.write(STORY, N, **SAMPLED) == plain["sampled"]
        stream = lead.stream(STORY, N)
        stream.wait_for_pieces(2)
        for back, number in ((first, signal.SIGTERM), (second, signal.SIGINT)):
            back.send(number)
            assert back.finish() == 0
            back.wait_for("disconnected from the lead")
        assert stream.finish() == plain[STORY]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_back_that_dies_or_hangs_within_a_text(
    lead: LeadProcess, plain: dict[str, str], demo_pair: tuple[Path, Path], number: signal.Signals
) -> None:
    with connected(demo_pair[1], lead.port) as first, connected(demo_pair[1], lead.port):
        stream = lead.stream(STORY, N)
        stream.wait_for_pieces(4)
        first.send(number)
        assert stream.finish() == plain[STORY]
        if number is signal.SIGKILL:  # the other back takes over
            write_until_accepted(lead, plain)


def test_a_back_that_is_ready_within_a_text_drafts(
    lead: LeadProcess, plain: dict[str, str], demo_pair: tuple[Path, Path]
) -> None:
    with connected(demo_pair[1], lead.port) as back:
        back.send(signal.SIGSTOP)
        stream = lead.stream(PROMPT, N)
        stream.wait_for_pieces(4)
        back.send(signal.SIGCONT)
        assert stream.finish() == plain[PROMPT]
        assert stream.events[-1]["timings"]["draft_n_accepted"] > 0


def test_a_local_draft_stands_by_behind_a_back(plain: dict[str, str], demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    local = ("-md", draft, "-td", "1", "--no-profile", "--back-token", TOKEN)
    with LeadProcess(target, *OPTIONS, *local, before=SLOW_TARGET) as lead:
        with connected(draft, lead.port) as back:
            lead_text = lead.stream(PROMPT, N)
            lead.wait_for("draft .* is in use")
            lead_text.wait_for_pieces(4)
            back.send(signal.SIGKILL)
            assert lead_text.finish() == plain[PROMPT]
        wait_until(lambda: lead.metric("duo:workers_connected") == 0)
        write_until_accepted(lead, plain)


def test_a_back_connects_again_to_a_lead_that_was_restarted(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    with LeadProcess(target, "-c", "256", "--back-token", TOKEN) as first, connected(draft, first.port) as back:
        first.send(signal.SIGTERM)
        assert first.finish() == 0
        back.wait_for("the lead disconnected")
        back.wait_for("trying again")
        with LeadProcess(target, "-c", "256", "--back-token", TOKEN, "--port", str(first.port)) as second:
            back.wait_for("connected to the lead", 2)
            assert second.write(PROMPT, 8)


# Memory


def memory(lead: LeadProcess) -> int:
    """Bytes of memory that the lead has."""
    status = Path(f"/proc/{lead.process.pid}/status")
    if not status.exists():
        pytest.skip("only Linux tells")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_large_messages_do_not_accumulate(lead: LeadProcess, demo_pair: tuple[Path, Path]) -> None:
    with closing(Model(ModelConfig(demo_pair[1], n_gpu_layers=0), vocabulary_only=True)) as model:
        said = messages.encode(hello(TOKEN, model))
    before = memory(lead)
    candidate = msgspec.msgpack.decode(messages.encode(GuessMessage(1, 0, 3, 3, 7, 9.0, 1, 0.001)))
    large = msgspec.msgpack.encode([*candidate, bytes(60_000)])  # of fields that are ignored
    with connect(f"ws://127.0.0.1:{lead.port}{messages.ROUTE}", compression=None, proxy=None) as back:
        back.send(said)
        with suppress(ConnectionClosed):
            while True:
                back.send(large)
    assert memory(lead) - before < 64 * MIB
    assert lead.metrics()['duo:worker_drops_total{reason="flood"}'] == 1


def test_unread_answers_to_pings_do_not_accumulate(lead: LeadProcess) -> None:
    before = memory(lead)
    with raw_websocket(lead.port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1.0)
        pings = frame(0x9, bytes(125)) * 8192
        with suppress(OSError):  # the lead reads no more of them
            for _ in range(64 * MIB // len(pings)):
                connection.sendall(pings)
        assert memory(lead) - before < 32 * MIB
