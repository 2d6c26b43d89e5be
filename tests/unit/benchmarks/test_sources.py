"""Bars of lookup and of translated drafts, on made-up rates."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import sources
from benchmarks.contestants import Duo, DuoRun, Setup
from benchmarks.measure import Verdict
from duo.bench.contestant import Contestant, Job, Run
from duo.bench.prompts import Prompt
from duo.bench.results import Results
from duo.bench.rounds import Sample
from tests.unit.bench.samples import STORY, Silent


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("a prompt\n", encoding="utf-8")
    return Setup(
        "tinyllama-f32-smollm2", Path("target"), Path("draft"), [prompt] * 3, 1, 64, ["duo"], tmp_path, (), tmp_path,
        ExitStack(),
    )  # fmt: skip


def results(rates: dict[str, list[DuoRun]]) -> Results:
    found = Results([Contestant(name, Silent()) for name in rates])
    for contestant in found.contestants:
        for i, run in enumerate(rates[contestant.name]):
            found.add(Sample(contestant, i, Prompt("?", "?"), run))
    return found


def run(rate: float, forecast: float | None = None, gain: float | None = None, first: float | None = None) -> DuoRun:
    return DuoRun(
        64, rate, STORY, first_accept_rate=first, forecast_tokens_per_s=forecast, forecast_gain=gain
    )  # fmt: skip


def verdicts(setup: Setup, found: Results) -> list[Verdict]:
    return [bar.verdict(found) for bar in sources.translated_bars(setup)]


def test_a_translated_draft_must_gain_where_the_forecast_says_that_it_can(setup: Setup) -> None:
    rates = {
        sources.PLAIN: [run(10), run(10)],
        sources.WARM: [run(13, 13, 1.5), run(11, 11, 1.1)],
        sources.SYNC: [run(12, first=0.5), run(12, first=0.8)],
    }
    accepted, share, gain = verdicts(setup, results(rates))
    assert [v.figure and v.figure.middle for v in (accepted, share)] == pytest.approx([0.4**0.5, 1.0])
    assert gain.figure is not None
    assert gain.figure.middle == pytest.approx(1.3), "the first round only"
    rates[sources.WARM] = [run(11, 11, 1.1)] * 2
    assert verdicts(setup, results(rates))[-1].passed is None


def test_a_useless_draft_must_cost_little(setup: Setup) -> None:
    useless = replace(setup, pair="smollm2-f32-stories")
    (verdict,) = verdicts(useless, results({sources.PLAIN: [run(10)], sources.COLD: [run(9)]}))
    assert str(verdict) == f"{sources.COLD} over {sources.PLAIN}: 0.900; at least 0.97: MISSED"


def test_both_sources_are_compared_with_the_better_one(setup: Setup) -> None:
    rates = {f"{sources.ONE}draft": [run(10)], f"{sources.ONE}lookup": [run(20)], sources.BOTH: [run(19)]}
    (bar,) = sources.both_bars(setup)
    assert str(bar.verdict(results(rates))) == f"{sources.BOTH} over {sources.ONE}lookup: 0.950; at least 0.97: MISSED"


def test_each_contestant_has_the_sources_of_its_name(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []

    def write(writer: Duo, job: Job, stop: threading.Event) -> Run:
        learned.append(writer.name)
        assert job.prompt == "a prompt\n"
        return run(1)

    monkeypatch.setattr(Duo, "write", write)
    found = {}
    for contestants in (sources.lookup, sources.prose, sources.translated, sources.both):
        for contestant in contestants(setup):
            assert isinstance(contestant.writer, Duo)
            command = contestant.writer.command(setup.job)
            found[contestant.name] = ("-md" in command, "--lookup off" not in " ".join(command))
    assert found == {
        sources.PLAIN: (False, False),
        sources.LOOKUP: (False, True),
        **dict.fromkeys((sources.COLD, sources.WARM, sources.SYNC, f"{sources.ONE}draft"), (True, False)),
        f"{sources.ONE}lookup": (False, True),
        sources.BOTH: (True, True),
    }
    assert learned == [sources.WARM] * 2
