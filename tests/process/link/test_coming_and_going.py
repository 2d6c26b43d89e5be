"""Real backs that start, stop, die and hang while a real lead writes: the text is the lead's own."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command import SLOW_TARGET
from tests.serving import BackProcess, LeadProcess

PROMPT = "def fibonacci(n):\n    "
STORY = "Once upon a time, in a small village by the sea,"
N = 40

# So that a back that hangs is noticed soon.
HASTY = "import duo.link.remote_draft as remote\nremote.STALL_S = 0.5\n"


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    options = ("--exact", "--schedule", "async", "-c", "512")
    with LeadProcess(demo_pair[0], *options, before=SLOW_TARGET + HASTY) as lead:
        yield lead


@pytest.fixture(scope="module")
def alone(demo_pair: tuple[Path, Path]) -> dict[str, str]:
    """The texts of a lead without backs."""
    with LeadProcess(demo_pair[0], "--exact", "-c", "512") as lead:
        return {prompt: lead.write(prompt, N) for prompt in (PROMPT, STORY)} | {
            "sampled": lead.write(STORY, N, temperature=0.8, seed=3)
        }


def accepted(lead: LeadProcess) -> float:
    return lead.metric("spec_decode_num_accepted_tokens_total")


@pytest.mark.parametrize("n_backs", [0, 1, 3])
def test_with_any_number_of_backs_the_text_is_the_same(
    lead: LeadProcess, alone: dict[str, str], demo_pair: tuple[Path, Path], n_backs: int
) -> None:
    before = accepted(lead)
    joined = lead.metric("duo:worker_joins_total")
    with ExitStack() as stack:
        for _ in range(n_backs):
            stack.enter_context(BackProcess(demo_pair[1], lead.port)).wait_for("joined the lead")
        assert lead.metric("duo:worker_joins_total") == joined + n_backs
        assert lead.write(PROMPT, N) == alone[PROMPT]
        assert lead.write(STORY, N, temperature=0.8, seed=3) == alone["sampled"]
    assert (accepted(lead) > before) == (n_backs > 0)


def test_a_back_that_joins_in_the_middle_helps(
    lead: LeadProcess, alone: dict[str, str], demo_pair: tuple[Path, Path]
) -> None:
    with BackProcess(demo_pair[1], lead.port, before="import time; time.sleep(1)") as back:
        stream = lead.stream(PROMPT, N)
        assert stream.finish() == alone[PROMPT]
        back.wait_for("joined the lead")
    with BackProcess(demo_pair[1], lead.port) as back:
        back.wait_for("joined the lead")
        back.send(signal.SIGSTOP)  # it is there and does nothing until the text has begun
        stream = lead.stream(PROMPT, N)
        stream.wait_for_pieces(4)
        back.send(signal.SIGCONT)
        assert stream.finish() == alone[PROMPT]
        assert stream.events[-1]["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT])
def test_another_back_takes_over_from_one_that_goes(
    lead: LeadProcess, alone: dict[str, str], demo_pair: tuple[Path, Path], number: signal.Signals
) -> None:
    with BackProcess(demo_pair[1], lead.port) as first:
        first.wait_for("joined the lead")
        with BackProcess(demo_pair[1], lead.port) as second:
            second.wait_for("joined the lead")
            stream = lead.stream(STORY, N)
            stream.wait_for_pieces(4)
            first.send(number)
            assert stream.finish() == alone[STORY]
            if number in (signal.SIGTERM, signal.SIGINT):
                assert first.finish() == 0
                assert any("left the lead" in line for line in first.lines)
            assert not any("Traceback" in line for line in first.lines + lead.lines)


def test_a_local_draft_stands_by_behind_all_backs(demo_pair: tuple[Path, Path], alone: dict[str, str]) -> None:
    target, draft = demo_pair
    options = ("-md", draft, "-td", "1", "--exact", "--schedule", "async", "-c", "512", "--no-profile")
    with LeadProcess(target, *options, before=SLOW_TARGET + HASTY) as lead:
        assert lead.write(PROMPT, N) == alone[PROMPT]
        by_itself = accepted(lead)
        assert by_itself > 0
        with BackProcess(draft, lead.port) as back:
            back.wait_for("joined the lead")
            stream = lead.stream(PROMPT, N)
            stream.wait_for_pieces(4)
            back.send(signal.SIGKILL)
            assert stream.finish() == alone[PROMPT]
        lead.wait_for("draft .* works")
        assert lead.write(STORY, N) == alone[STORY]
        assert accepted(lead) > by_itself


@pytest.mark.parametrize("seed", range(2))
def test_the_text_is_the_same_whatever_happens_to_the_backs(
    lead: LeadProcess, alone: dict[str, str], demo_pair: tuple[Path, Path], seed: int
) -> None:
    """Started, stopped, continued, ended and killed at random, while texts are written."""
    dice = random.Random(seed)
    blows = [signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM]
    with ExitStack() as stack:
        backs = [stack.enter_context(BackProcess(demo_pair[1], lead.port)) for _ in range(2)]
        for prompt in (PROMPT, STORY):
            stream = lead.stream(prompt, N)
            for n in range(2, 20, 4):
                stream.wait_for_pieces(n)
                back = dice.choice(backs)
                if back.process.poll() is None:
                    back.send(dice.choice(blows))
                else:
                    backs.remove(back)
                    backs.append(stack.enter_context(BackProcess(demo_pair[1], lead.port)))
            assert stream.finish() == alone[prompt]


def test_a_back_waits_for_a_lead_and_finds_it_again(demo_pair: tuple[Path, Path]) -> None:
    """Lead and back may start in any order, and the lead may go and come back."""
    target, draft = demo_pair
    with LeadProcess(target, "-c", "256") as first:
        port = first.port
        with BackProcess(draft, port) as back:
            back.wait_for("joined the lead")
            first.send(signal.SIGTERM)
            assert first.finish() == 0
            back.wait_for("the lead has gone")
            back.wait_for("trying again")
            with LeadProcess(target, "-c", "256", "--port", str(port)) as second:
                back.wait_for("joined the lead", 2)
                assert second.write(PROMPT, 8)
            back.send(signal.SIGINT)
            assert back.finish() == 0


def test_a_fault_of_the_leads_own_is_told_and_ends_nothing_but_the_connection(demo_pair: tuple[Path, Path]) -> None:
    before = "from duo.link.remote_draft import RemoteDraft\nRemoteDraft._next_message = lambda self: 1 / 0\n"
    with LeadProcess(demo_pair[0], "-c", "256", "-v", before=before) as lead:
        with BackProcess(demo_pair[1], lead.port):
            lead.wait_for("a fault with the remote draft .* at 127.0.0.1:")
            lead.wait_for("ZeroDivisionError")
        assert lead.write(PROMPT, 8)
        assert lead.metric("duo:workers_connected") == 0
