"""`duo tune` of a pair: what it prints, what it advises, and what it keeps for later runs."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from duo.cli.commands.plan import render
from duo.cli.commands.tune import advise, choose, elsewhere
from duo.diagnose.measure import SIZES, MeasurementError, Meter
from duo.diagnose.prospects import Measurements
from duo.speculation.modes import Schedule
from tests.command import Run, assert_refused, models
from tests.gguf_files import tiny_eagle3, tiny_llama
from tests.unit.cli.runner import duo

pytestmark = pytest.mark.usefixtures("instant")


def notes(run: Run) -> list[str]:
    """The lines on stderr, without what is said about drafts that are no smaller than the target."""
    return [line for line in run.stderr.splitlines() if not line.startswith("duo: the draft is ")]


def test_it_advises_and_keeps_what_later_runs_begin_with(tiny: Path, tmp_path: Path) -> None:
    env, report = {"DUO_CONFIG": str(tmp_path / "config")}, tmp_path / "run.json"
    run = duo("tune", *models(tiny, tiny), env=env)
    assert run.status == 0
    (line,) = notes(run)
    assert re.fullmatch(r"duo: measuring takes about \d+ s on an idle machine, and at most \d+ s", line)
    measured, predictions, advice = run.text.split("\n\n")
    for words in (
        "measured, ms per decode",
        "target, threads: 1 ",
        "draft, threads: 1 ",
        "sequences at once",
        "100 % of",
    ):
        assert words in measured
    plain, *_, best = predictions.splitlines()
    assert plain == "plain           10.00 tokens/s   1.00×   the target alone"
    said, flags, where = advice.splitlines()
    assert said.startswith("This draft pays: about ")
    assert flags.startswith(f"Options: {best.split('; ')[0].removeprefix('best: ')} (with 1 and 1 threads")
    (profile,) = (tmp_path / "config").rglob("tiny+tiny*.json")
    assert f" {profile}, " in where
    assert set(json.loads(profile.read_text())) == {"for", "draft", "threads"}

    found = duo(*models(tiny, tiny), "-p", "the cat", "-n", "1", "--json", report, env=env)
    assert (found.status, found.warnings) == (0, [])
    policy = json.loads(report.read_text())["policy"]
    assert policy["draft_ms"]["alone"] == pytest.approx(5), "nothing else is known of this pair"
    assert policy["curve_ms"]["alone"] == pytest.approx([100] * 17)


def test_without_reliable_times_nothing_is_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Measurements:
        raise MeasurementError("the machine cannot be measured now")

    monkeypatch.setattr(Meter, "measure", refuse)
    run = duo("tune", *models(tiny, tiny), env={"DUO_CONFIG": str(tmp_path / "config")})
    assert (run.status, run.stdout, (tmp_path / "config").exists()) == (1, b"", False)
    assert notes(run)[-1].startswith("duo: error: the machine cannot be measured now; nothing was saved (")


def test_doubtful_times_are_tentative_and_not_kept(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Meter.measure

    def doubtful(*arguments: Any) -> Measurements:
        found = measure(*arguments)
        found.doubts = "other programs use 1.2 of 2 cores"
        return found

    monkeypatch.setattr(Meter, "measure", doubtful)
    run = duo("tune", *models(tiny, tiny), env={"DUO_CONFIG": str(tmp_path / "config")})
    assert run.status == 0
    first, *_, last = run.text.splitlines()
    assert first == "tentative: other programs use 1.2 of 2 cores"
    assert last == "Nothing was saved: try again when the machine is idle."
    assert "This draft pays: about " in run.text
    assert "(with 1 and 1 threads)" in run.text
    assert "sequences at once" not in run.text, "not measured on a busy machine"
    assert not (tmp_path / "config").exists()


def test_it_predicts_the_draft_on_another_machine(tiny: Path, tmp_path: Path) -> None:
    env = {"DUO_CONFIG": str(tmp_path / "config")}
    report = tmp_path / "report.json"
    run = duo("tune", *models(tiny, tiny), "--latency-ms", "20", "--json", report, env=env)
    assert run.status == 0
    _, here, link, _ = run.text.split("\n\n")
    about, *lines = link.splitlines()
    assert about == "the draft on another machine like this one, round trip 20 ms:"
    assert lines[0] == here.splitlines()[0], "the target alone"
    rows = [line.split()[0] for line in here.splitlines()]
    rows.remove("sequential")
    assert [line.split()[0] for line in lines] == rows, "a remote draft does not take turns"
    figures = json.loads(report.read_text())
    assert figures["elsewhere"]["latency_ms"] == 20
    rates = figures["elsewhere"]["forecast_tokens_per_s"]
    assert set(rates) == {"off", "async"}
    assert rates["off"] == pytest.approx(float(lines[0].split()[1]), abs=0.01)
    assert rates["off"] == figures["forecast_tokens_per_s"]["off"]


@pytest.mark.parametrize("words", [[], ["-md", "{tiny}", "--list"], ["-md", "{tiny}", "--reset"], ["{tiny}"]])
def test_a_round_trip_needs_a_draft(tiny: Path, words: list[str]) -> None:
    run = duo("tune", "-m", tiny, *(word.format(tiny=tiny) for word in words), "--latency-ms", "20")
    assert (run.status, run.stdout) == (2, b"")
    assert "--latency-ms is a prediction for one draft: add -md" in run.stderr


def test_a_head_cannot_be_on_another_machine(tmp_path: Path) -> None:
    pair = models(tiny_llama(tmp_path / "target.gguf", n_layer=3), tiny_eagle3(tmp_path / "head.gguf"))
    said = "this draft reads what the target computes, so it cannot be elsewhere"
    assert_refused(duo("tune", *pair, "--latency-ms", "20"), said, status=2)


# What `duo tune` concludes from its measurements


def measured(
    target_s: float = 0.1, draft_s: float = 0.005, contention: float = 1.0, share: float = 0.8
) -> Measurements:
    """Of a target that gains from two threads and takes the same for any number of tokens."""
    found = Measurements()
    found.target = {n_threads: dict.fromkeys(SIZES, 2 * target_s / n_threads) for n_threads in (1, 2)}
    found.draft = {1: {1: 2 * draft_s, 2: 3 * draft_s}, 2: {1: draft_s, 2: 1.5 * draft_s}}
    for split in ((1, 1), (2, 1)):
        times = dict.fromkeys(SIZES, contention * 2 * target_s / split[0])
        found.concurrent[split] = (times, contention * draft_s)
    found.scores = [(3.0, i < round(100 * share)) for i in range(100)]
    random.Random(0).shuffle(found.scores)
    return found


def advice(found: Measurements) -> tuple[str, str, str]:
    """The two lines of advice, and the last line of the table before it."""
    tuned = choose(found)
    verdict, options = advise(found, tuned)
    return verdict, options, render(tuned.prospects)[-1]


def test_the_fastest_numbers_of_threads_are_chosen() -> None:
    tuned, slow = choose(measured()), measured()
    assert tuned.threads == {"target": 2, "draft": 2, "concurrent": (2, 1)}
    slow.draft = {1: {1: 0.005}, 2: {1: 0.02}}
    slow.target[2] = dict.fromkeys(SIZES, 9.0)
    slow.concurrent[2, 1] = (slow.target[2], 0.005)
    tuned = choose(slow)
    assert tuned.threads == {"target": 1, "draft": 1, "concurrent": (1, 1)}
    assert tuned.draft.target.alone.curve(len(SIZES)) == pytest.approx([0.2] * len(SIZES))


@pytest.mark.parametrize(
    ("contention", "schedule", "with_threads"), [(1.0, "async", "2 and 1 threads"), (3.0, "sync", "2 and 2 threads")]
)
def test_contention_decides_between_the_schedules(contention: float, schedule: str, with_threads: str) -> None:
    verdict, options, best = advice(measured(contention=contention))
    (factor,) = re.findall(r"([\d.]+) times as fast", verdict)
    assert 1.3 < float(factor) < 6
    assert f"--schedule {schedule} (with {with_threads}" in options
    assert f"--schedule {schedule}" in best
    assert verdict.rstrip(".").endswith(best.partition("; ")[2]), "with the same number of candidates"


def test_a_round_trip_is_hidden_by_outcomes_that_are_prepared() -> None:
    found = measured(draft_s=0.02, contention=2.0)
    tuned = choose(found)
    near, far = (elsewhere(found, tuned, latency_s) for latency_s in (0.0, 0.05))
    assert near.prepared is None, "what several sequences cost was not measured"
    assert near.rates[Schedule.ASYNC] > 1.2 * tuned.prospects.rates[Schedule.ASYNC], "no contention"
    assert far.rates[Schedule.ASYNC] < near.rates[Schedule.ASYNC]
    found.branches = {2: 1.1, 4: 1.2, 8: 1.4}
    prepared = elsewhere(found, tuned, 0.05)
    assert prepared.rates[Schedule.ASYNC] > 1.05 * far.rates[Schedule.ASYNC]
    assert prepared.rates[Schedule.OFF] == far.rates[Schedule.OFF] == tuned.prospects.rates[Schedule.OFF]


def test_what_a_decode_costs_that_cannot_be_aborted_is_foretold_here_and_elsewhere() -> None:
    rates = []
    for aborts in (True, False):
        found = measured(draft_s=0.05)
        found.aborts = aborts
        tuned = choose(found)
        rates.append([each.rates[Schedule.ASYNC] for each in (tuned.prospects, elsewhere(found, tuned, 0.05))])
    assert [one < 0.98 * other for other, one in zip(*rates, strict=True)] == [True, True]


def test_both_forecasts_are_about_the_same_candidates() -> None:
    """Without a round trip, and without contention, the draft of another machine is as good as this one."""
    found = measured(draft_s=0.03, share=0.7)
    found.scores = [(confidence, right) for confidence, right in ((5.0, True), (4.5, True), (0.3, False)) * 40]
    tuned = choose(found)
    there, here = elsewhere(found, tuned, 0.0).rates, tuned.prospects.rates
    assert there[Schedule.SYNC] == pytest.approx(here[Schedule.SYNC], rel=1e-3)
    assert there[Schedule.ASYNC] == pytest.approx(here[Schedule.ASYNC], rel=1e-2)


@pytest.mark.parametrize(("draft_s", "share", "said"), [(0.2, 0.8, "200 %"), (0.005, 0.0, "5 %")])
def test_a_slow_draft_and_a_bad_one_are_advised_against(draft_s: float, share: float, said: str) -> None:
    verdict, options, best = advice(measured(draft_s=draft_s, share=share))
    assert f" {said} of the target's time" in verdict
    assert f" {100 * share:.0f} % are accepted" in verdict
    assert "omit -md" in options
    assert "off" not in options.partition("--heads off")[0], "which would turn the lookup off, too"
    assert best == "best: the target alone (omit -md)"
