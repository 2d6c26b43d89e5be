from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from duo.engine.metrics import BranchRecord, BranchStatistics, Event, Metrics, PromptStatistics, overlap, united
from duo.spec.schedule import Schedule
from tests.fakes import ScriptedClock


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ([], [(0, 1)], 0),
        ([(0, 1)], [(1, 2)], 0),
        ([(0, 4)], [(1, 2), (3, 9)], 2),
        ([(0, 1), (2, 3), (4, 5)], [(0.5, 4.5)], 2),
    ],
)
def test_overlap_of_two_lanes(
    first: list[tuple[float, float]], second: list[tuple[float, float]], seconds: float
) -> None:
    assert overlap(first, second) == seconds
    assert overlap(second, first) == seconds


@pytest.fixture
def metrics() -> Metrics:
    """A prompt (0-1 s), then two decodes: 2 of 3 candidates accepted, then 0 of 1."""
    made = Metrics(ScriptedClock([1.0, 3.0, 5.0]), started=0.0, n_prompt=10)
    made.decoded(0.0, 1.0, 10)
    made.stepped(1.0, 0, 0, 1, Schedule.OFF)
    made.drafted(0.5, 1.5, 10)
    made.waited(1.0, 2.0)
    made.decoded(2.0, 3.0, 4)
    made.stepped(3.0, 3, 2, 3, Schedule.SYNC)
    made.drafted(2.0, 2.5, 1)
    made.decoded(3.0, 5.0, 2)
    made.stepped(5.0, 1, 0, 1, Schedule.ASYNC)
    made.stop = "token limit"
    return made


def test_statistics_of_a_run(metrics: Metrics) -> None:
    statistics = metrics.statistics()
    assert statistics.prompt == PromptStatistics(tokens=10, seconds=1.0, tokens_per_s=10.0)
    assert statistics.tokens_per_s == 1.0
    generation = statistics.generation
    assert generation.tokens == 5
    assert generation.seconds == 4.0
    assert generation.tokens_per_s == 1.0, "the first token belongs to the prompt"
    assert generation.time_to_first_token_s == 1.0
    assert generation.decodes == 2
    assert generation.tokens_per_decode == 2.0
    assert generation.target_ms_per_decode == 1500.0
    assert generation.waited_s == 1.0
    assert generation.tokens_by_schedule == {"sync": 3, "async": 1}, "without the prompt's first token"
    assert generation.stop == "token limit"
    draft = statistics.draft
    assert draft is not None
    assert (draft.drafted, draft.verified, draft.accepted) == (2, 4, 2)
    assert draft.accept_rate == 0.5
    assert draft.accept_rate_by_position == [0.5, 1.0, 0.0]
    assert draft.decodes_by_candidates == [0, 1, 0, 1], "the first step verified none"
    assert draft.ms_per_token == 500.0, "prefill does not count"
    assert draft.hidden == pytest.approx(1.0 / 1.5), "0.5 s concurrent with the prefill, 0.5 s with a decode"
    assert draft.unused == 0.0


def test_statistics_of_an_empty_run() -> None:
    statistics = Metrics().statistics()
    assert statistics.draft is None
    assert statistics.tokens_per_s is None
    assert statistics.generation.tokens_by_schedule == {}
    json.dumps(asdict(statistics))


def test_tokens_and_decodes_are_counted_by_schedule_and_size() -> None:
    metrics = Metrics()
    metrics.drafted(0.0, 1.0, 1)
    steps = [(0, Schedule.OFF), (0, Schedule.OFF), (2, Schedule.SYNC), (5, Schedule.ASYNC), (2, Schedule.SYNC)]
    for n_candidates, schedule in steps:
        metrics.stepped(0.0, n_candidates, n_candidates, n_candidates + 1, schedule)
    statistics = metrics.statistics()
    assert statistics.generation.tokens_by_schedule == {"off": 1, "sync": 6, "async": 6}
    assert statistics.draft is not None
    assert statistics.draft.decodes_by_candidates == [1, 0, 2, 0, 0, 1]
    json.dumps(asdict(statistics))


def test_probes_are_not_counted_as_drafted_tokens(metrics: Metrics) -> None:
    before = metrics.statistics().draft
    metrics.probed(5.0, 5.5, 48)
    after = metrics.statistics().draft
    assert before is not None
    assert after is not None
    assert replace(after, hidden=0) == replace(before, hidden=0)
    assert before.hidden is not None
    assert after.hidden is not None
    assert after.hidden < before.hidden, "they take time"
    assert ("draft", "probe", 5.0, 5.5, 48) in metrics.draft_events


def test_overlapping_events_are_united() -> None:
    events = [Event("draft", "draft", start, end, 1) for start, end in ((0, 2), (1, 3), (3, 4), (5, 9), (6, 7))]
    assert united(events) == [(0, 4), (5, 9)]
    assert united(reversed(events)) == [(0, 4), (5, 9)]
    assert united([*events, BranchRecord(4.5, 6, 2, 1)]) == [(0, 4), (4.5, 9)]
    assert united([]) == []


def test_outcomes_prepared_and_what_became_of_them() -> None:
    metrics = Metrics()
    metrics.decoded(0.0, 4.0, 1)
    metrics.stepped(4.0, 0, 0, 1, Schedule.ASYNC)
    metrics.drafted(0.0, 2.0, 1)
    metrics.prepared(0.0, 2.0, 2, 2)
    metrics.prepared(8.0, 10.0, 3, 1)  # the draft's own chain is as far ahead as it may be
    metrics.decoded(4.0, 8.0, 5)
    metrics.stepped(8.0, 4, 3, 4, Schedule.ASYNC)
    for position, hit in ((2, True), (0, False), (2, False)):
        metrics.resolved(position, hit)
    draft = metrics.statistics().draft
    assert draft is not None
    assert draft.branches == BranchStatistics(
        prepared=3, tokens=5, contradictions=3, hits=1, hit_rate=1 / 3, hit_rate_by_position=[0.0, None, 0.5]
    )
    assert (draft.drafted, draft.accepted) == (6, 3), "the tokens of branches are drafted, too"
    assert draft.unused == 0.5
    assert draft.hidden == 0.5, "a decode for the chain and for branches counts once"
    assert draft.ms_per_token == 2000.0
    json.dumps(asdict(metrics.statistics()))


def test_without_branches_there_are_no_figures_about_them(metrics: Metrics) -> None:
    draft = metrics.statistics().draft
    assert draft is not None
    assert draft.branches is None
    metrics.prepared(5.0, 6.0, 1, 1)
    draft = metrics.statistics().draft
    assert draft is not None
    assert draft.branches == BranchStatistics(1, 1, 0, 0, None, []), "no contradiction yet"
