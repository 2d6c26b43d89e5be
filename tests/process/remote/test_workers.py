"""Real workers that connect, disconnect, die and hang while a real lead writes: the text is the target's own."""

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.command import SLOW_TARGET
from tests.gguf_files import tiny_llama
from tests.raw_http import connect as connect_raw
from tests.raw_http import handshake
from tests.serving import BackProcess, LeadProcess, wait_until
from tests.unit.remote.workers import frame

PROMPT = "def fibonacci(n):\n    "
STORY = "Once upon a time, in a small village by the sea,"
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 3}
N = 24
TOKEN = "secret"
OPTIONS = (
    "--exact", "--schedule", "async", "--branches", "3", "-c", "512", "--memory", "off", "--back-token", TOKEN
)  # fmt: skip
MIB = 2**20


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with LeadProcess(demo_pair[0], *OPTIONS, before=SLOW_TARGET) as lead:
        yield lead
        assert lead.process.poll() is None
        assert not any("Traceback" in line for line in lead.lines)


@pytest.fixture(scope="module")
def plain(lead: LeadProcess) -> dict[str, str]:
    """The texts of the lead before there is any worker."""
    assert lead.metric("duo:worker_joins_total") == 0
    return {PROMPT: lead.write(PROMPT, N), STORY: lead.write(STORY, N), "sampled": lead.write(STORY, N, **SAMPLED)}


@pytest.fixture(autouse=True)
def alone(lead: LeadProcess, plain: dict[str, str]) -> None:
    """The workers of the test before have disconnected."""
    wait_until(lambda: lead.metric("duo:workers_connected") == 0)


def connected(draft: Path, port: int) -> BackProcess:
    worker = BackProcess(draft, port, "--token", TOKEN)
    worker.wait_for("connected to the lead")
    return worker


def write_until_accepted(lead: LeadProcess, plain: dict[str, str]) -> None:
    """Until a candidate was accepted: the worker may not be ready yet."""
    before = lead.n_accepted

    def accepts() -> bool:
        assert lead.write(PROMPT, N) == plain[PROMPT]
        return lead.n_accepted > before

    wait_until(accepts)


def test_workers_that_are_killed_and_stopped_within_a_text(
    lead: LeadProcess, plain: dict[str, str], demo_pair: tuple[Path, Path]
) -> None:
    draft = demo_pair[1]
    with connected(draft, lead.port) as first:
        write_until_accepted(lead, plain)

        def prepares() -> bool:
            assert lead.write(STORY, N, **SAMPLED) == plain["sampled"]
            return all(lead.metric(f"duo:{name}_prepared_total") for name in ("outcomes", "contradictions"))

        wait_until(prepares)
        with connected(draft, lead.port) as second:
            stream = lead.stream(STORY, N)
            stream.wait_for_pieces(4)
            first.send(signal.SIGKILL)
            assert stream.finish() == plain[STORY]
            write_until_accepted(lead, plain)  # the other worker takes over
            stream = lead.stream(STORY, N)
            stream.wait_for_pieces(2)
            second.send(signal.SIGINT)
            assert second.finish() == 0
            second.wait_for("disconnected from the lead")
            assert stream.finish() == plain[STORY]


def test_a_worker_that_hangs_and_one_that_is_ready_within_a_text(
    lead: LeadProcess, plain: dict[str, str], demo_pair: tuple[Path, Path]
) -> None:
    with connected(demo_pair[1], lead.port) as worker:
        worker.send(signal.SIGSTOP)
        stream = lead.stream(PROMPT, 8 * N)  # long enough for the worker to make its context, and to time it
        stream.wait_for_pieces(4)
        worker.send(signal.SIGCONT)
        assert stream.finish().startswith(plain[PROMPT])
        assert stream.events[-1]["timings"]["draft_n_accepted"] > 0
        stream = lead.stream(STORY, N)
        stream.wait_for_pieces(4)
        worker.send(signal.SIGSTOP)
        assert stream.finish() == plain[STORY]


def test_interleaved_and_paused_texts_while_workers_are_killed(tmp_path: Path) -> None:
    target, draft = tiny_llama(tmp_path / "target.gguf", depth=0.05), tiny_llama(tmp_path / "draft.gguf", depth=0.02)
    dice, common = random.Random(4), ("--exact", "-c", "600", "--lookup", "off")
    options = (*common, "--turn-tokens", "4", "--schedule", "async", "--branches", "3", "--back-token", TOKEN)
    sampled: dict[str, Any] = {"temperature": 0.8, "seed": 5}
    slow = "from tests.child import slow_target; slow_target(seconds=0.03)\n"
    with (
        LeadProcess(target, *options, before=slow) as lead,
        LeadProcess(target, *common) as alone,
        ExitStack() as stack,
    ):
        texts, workers, expected = [STORY * n for n in (1, 2, 3, 4)], list[BackProcess](), list[str]()
        for _ in range(12):
            if len(workers) < dice.randrange(1, 3):
                workers.append(stack.enter_context(connected(draft, lead.port)))
            chosen = dice.sample(range(len(texts)), dice.randrange(2, 5))
            streams = [lead.stream(texts[i], N, **sampled) for i in chosen]
            streams[0].wait_for_pieces(dice.randrange(1, 9))
            if dice.random() < 0.6:
                workers.pop(dice.randrange(len(workers))).send(signal.SIGKILL)
            for i, stream in zip(chosen, streams, strict=True):
                expected.append(alone.write(texts[i], N, **sampled))
                assert stream.finish() == expected[-1]
                texts[i] = (
                    texts[i][:100] + expected[-1]
                    if dice.random() < 0.3 or len(texts[i]) > 250
                    else texts[i] + expected[-1]
                )
        assert lead.metric("duo:queue_pauses_total") > 0
        assert lead.metric("duo:worker_drops_total") > 3
        assert lead.n_accepted > 0
        assert lead.metric("duo:outcomes_prepared_total") > 0


def test_unread_answers_do_not_accumulate(lead: LeadProcess) -> None:
    before = lead.facts.memory_info().rss
    with connect_raw(lead, handshake(), window=4096) as connection:
        connection.settimeout(1.0)
        pings = frame(0x9, bytes(125)) * 8192
        with suppress(OSError):  # the lead reads no more of them
            for _ in range(64 * MIB // len(pings)):
                connection.sendall(pings)
        assert lead.facts.memory_info().rss - before < 32 * MIB
