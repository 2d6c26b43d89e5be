"""What the threads of a text record, and what it adds up to."""

from dataclasses import asdict

import pytest

from duo.engine.recorder import Recorder, Totals
from duo.engine.statistics import StepRecord, overlap
from duo.speculation.modes import Schedule
from duo.speculation.types import Origin
from tests.unit.engine.helpers import make_ending

OFF, SYNC, ASYNC = Schedule.OFF, Schedule.SYNC, Schedule.ASYNC


def step(
    metrics: Recorder, end: float, candidates: int = 0, accepted: int = 0, schedule: Schedule = ASYNC,
    source: Origin = Origin.DRAFT,
) -> None:  # fmt: skip
    metrics.steps.append(StepRecord(end, end, candidates, accepted, accepted + 1, schedule, source))


@pytest.fixture
def metrics() -> Recorder:
    """A prompt (0-1 s), then three decodes: 2 of 3 candidates accepted, 0 of 1, and 1 of 2 from the text itself."""
    made = Recorder(started=0.0, n_prompt=10, ending=make_ending())
    assert made.ending is not None
    made.ending.reason = "token limit"
    made.decoded(0.0, 1.0, 10)
    step(made, 1.0, schedule=OFF)
    made.drafted(0.5, 1.5, 10)
    made.waited(1.0, 2.0)
    made.decoded(2.0, 3.0, 4)
    step(made, 3.0, 3, 2, SYNC)
    made.drafted(2.0, 2.5, 1)
    made.decoded(3.0, 5.0, 2)
    step(made, 5.0, 1, 0, ASYNC)
    made.decoded(5.0, 8.0, 3)
    step(made, 9.0, 2, 1, ASYNC, Origin.LOOKUP)
    return made


def test_statistics(metrics: Recorder) -> None:
    found = metrics.statistics()
    assert asdict(found) == {
        "prompt": {"tokens": 10, "seconds": 1.0, "tokens_per_s": 10.0},
        "generation": {  # rates and shares without the first step, which belongs to the prompt
            "tokens": 7, "seconds": 8.0, "tokens_per_s": 0.75, "time_to_first_token_s": 1.0, "decodes": 3,
            "tokens_per_decode": 2.0, "target_ms_per_decode": 2000.0, "waited_s": 1.0,
            "tokens_by_schedule": {"sync": 3, "async": 3}, "stop": "token limit",
        },
        "draft": {
            "drafted": 2, "verified": 4, "accepted": 2, "accept_rate": 0.5, "accept_rate_by_position": [0.5, 1.0, 0.0],
            "decodes_by_candidates": [0, 1, 0, 1], "ms_per_token": 500.0, "computed_s": 1.0,
            "hidden": pytest.approx(1.0 / 1.5),  # 0.5 s concurrent with the prefill, 0.5 s with a decode
            "unused": 0.0, "error": None, "vocabulary": "shared", "lost_to_translation": 0, "branches": None,
            "alternatives": 0, "alternatives_accepted": 0,
        },
        "lookup": {
            "verified": 2, "accepted": 1, "accept_rate": 0.5, "decodes": 1, "accepted_by_schedule": {"async": 1},
        },
    }  # fmt: skip
    assert (found.tokens_per_s, found.verified, found.accepted) == (0.75, 6, 3)


def test_outcomes_prepared_and_what_became_of_them() -> None:
    metrics = Recorder()
    metrics.decoded(0.0, 4.0, 1)
    step(metrics, 4.0)
    metrics.drafted(0.0, 2.0, 1)
    metrics.prepared(0.0, 2.0, 2, 2)
    metrics.prepared(8.0, 10.0, 3, 1)  # the draft's own chain is as far ahead as it may be
    metrics.decoded(4.0, 8.0, 5)
    step(metrics, 8.0, 4, 3)
    for position, hit in ((2, True), (0, False), (2, False)):
        metrics.resolved(position, hit)
    draft = metrics.statistics().draft
    assert draft is not None
    assert draft.branches is not None
    assert asdict(draft.branches) == {
        "prepared": 3, "tokens": 5, "contradictions": 3, "hits": 1, "hit_rate": 1 / 3,
        "hit_rate_by_position": [0.0, None, 0.5],
    }  # fmt: skip
    assert (draft.drafted, draft.accepted) == (6, 3), "the tokens of branches are drafted, too"
    assert (draft.unused, draft.ms_per_token) == (0.5, 2000.0)
    assert draft.hidden == 0.5, "a decode for the chain and for branches counts once"


def test_recent_rate_and_load() -> None:
    metrics = Recorder()
    totals = Totals(metrics, recent_s=2.0)
    assert totals.recent() is None
    for i in range(11):  # one token a second
        metrics.decoded(i, 1.0 + i, 1)
        step(metrics, 1.0 + i)
    totals.update()
    assert totals.recent() == (1.0, 1.0, 0.0)
    for i in range(40):  # then steps of two tokens; the target waits half of the time, the draft works a quarter
        start = 11.0 + i / 10
        metrics.waited(start, start + 0.05)
        metrics.decoded(start + 0.05, start + 0.1, 2)
        metrics.drafted(start, start + 0.025, 1)
        metrics.prepared(start, start + 0.025, 1, 1)
        step(metrics, start + 0.1, 4, 1)
        totals.update()
    found = totals.recent()
    assert found == pytest.approx((20.0, 0.5, 0.25), rel=0.06)
    assert totals.tokens_per_s == pytest.approx(90 / 14)
    assert totals.recent(16.5) == found, "the target is at work"
    stalled = totals.recent(37.0)
    assert stalled is not None
    assert stalled.rate == pytest.approx(40 / 24, rel=0.06)
    assert max(stalled[1:]) < 0.1


def test_overlapping_intervals_count_once() -> None:
    first, second = [(0, 2), (1, 3), (3, 4), (5, 9), (6, 7)], [(2, 3.5), (2, 6)]
    assert overlap(first, second) == overlap(reversed(second), first) == 3.0
    assert overlap([(0, 2)], [(2, 3)]) == overlap([], first) == 0
