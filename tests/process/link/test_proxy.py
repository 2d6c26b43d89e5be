"""Whatever the network does to what lead and back say to each other, the text is the lead's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import SLOW_TARGET
from tests.process.link.proxy import Proxy
from tests.prompts import PROMPTS
from tests.serving import PATIENCE_S, BackProcess, LeadProcess

N = 48
QUITE_SLOW_TARGET = SLOW_TARGET.replace("0.05", "0.01")
ASKED = [PROMPTS["question and answer"], PROMPTS["code"]]


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with LeadProcess(
        demo_pair[0], "--exact", "--schedule", "async", "-c", "512", "--back-token", "secret", before=QUITE_SLOW_TARGET
    ) as lead:
        yield lead


@pytest.fixture(scope="module")
def plain(lead: LeadProcess) -> list[str]:
    """What the lead writes when there is no back."""
    assert lead.metric("duo:worker_joins_total") == 0, "this must be asked first"
    answers = [ask(lead, prompt) for prompt in ASKED]
    assert not any("draft_n" in answer["timings"] for answer in answers)
    return [text_of(answer) for answer in answers]


def ask(lead: LeadProcess, prompt: str) -> dict[str, Any]:
    answer = lead.post("/v1/completions", prompt=prompt, max_tokens=N, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ask_until_helped(lead: LeadProcess) -> tuple[list[str], list[str]]:
    """What it was asked and what it answered, until a guess was accepted in each of the texts."""
    asked, texts = [], []
    for prompt in ASKED:
        for _ in range(10):  # it may be that the back is not ready yet
            answer = ask(lead, prompt)
            asked.append(prompt)
            texts.append(text_of(answer))
            if n_accepted(answer):
                break
        assert n_accepted(answer) > 0
    return asked, texts


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def n_accepted(answer: dict[str, Any]) -> int:
    return int(answer["timings"].get("draft_n_accepted", 0))


def drafting(lead: LeadProcess, proxy: Proxy, draft: Path) -> BackProcess:
    """A back behind the proxy, which has joined. The ones before it have gone."""
    wait_until(lead, "duo:workers_connected", 0)
    back = BackProcess(draft, proxy.port, "--token", "secret")
    back.wait_for("joined the lead")
    wait_until(lead, "duo:workers_connected", 1)
    return back


def wait_until(lead: LeadProcess, metric: str, value: float) -> None:
    end = time.monotonic() + PATIENCE_S
    while lead.metric(metric) != value:
        assert time.monotonic() < end, f"{metric} is never {value}: {lead.lines}"
        time.sleep(0.02)


@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.05])
def test_a_long_wire(lead: LeadProcess, plain: list[str], demo_pair: tuple[Path, Path], delay_s: float) -> None:
    with Proxy(lead.port, delay_s=delay_s) as proxy, drafting(lead, proxy, demo_pair[1]):
        asked, texts = ask_until_helped(lead)
    assert texts == [plain[ASKED.index(prompt)] for prompt in asked]
    assert not proxy.counts.keys() - {"connections"}


def test_a_thin_wire(lead: LeadProcess, plain: list[str], demo_pair: tuple[Path, Path]) -> None:
    with Proxy(lead.port, bytes_per_s=20_000) as proxy, drafting(lead, proxy, demo_pair[1]):
        asked, texts = ask_until_helped(lead)
    assert texts == [plain[ASKED.index(prompt)] for prompt in asked]


@pytest.mark.parametrize(
    "chances",
    [
        pytest.param({"cut": 0.05}, id="cut"),
        pytest.param({"twice": 0.2}, id="twice"),
        pytest.param({"swap": 0.2}, id="swap"),
        pytest.param({"spoil": 0.2}, id="spoil"),
        pytest.param({"cut": 0.02, "twice": 0.1, "swap": 0.1, "spoil": 0.1}, id="all"),
    ],
)
def test_a_wire_that_makes_mistakes(
    lead: LeadProcess, plain: list[str], demo_pair: tuple[Path, Path], chances: dict[str, float]
) -> None:
    with Proxy(lead.port, seed=1, **chances) as proxy, drafting(lead, proxy, demo_pair[1]) as back:
        answers: list[dict[str, Any]] = []
        while not chances.keys() <= proxy.counts.keys() or sum(map(n_accepted, answers)) == 0 or len(answers) < 2:
            answers.append(ask(lead, ASKED[len(answers) % 2]))
            assert len(answers) < 20, (proxy.counts, lead.lines, back.lines)
        assert back.process.poll() is None, back.lines
    assert [text_of(answer) for answer in answers] == [plain[i % 2] for i in range(len(answers))]


def test_after_all_that_the_lead_goes_on_alone(lead: LeadProcess, plain: list[str]) -> None:
    wait_until(lead, "duo:workers_connected", 0)
    assert plain[1].startswith(lead.write(ASKED[1], 8))


def test_a_lead_that_is_not_there(demo_pair: tuple[Path, Path]) -> None:
    with Proxy(1) as proxy, BackProcess(demo_pair[1], proxy.port) as back:
        back.wait_for("no lead takes me at .*: trying again")
        assert back.process.poll() is None
