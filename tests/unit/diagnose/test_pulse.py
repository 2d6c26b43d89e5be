from __future__ import annotations

import pytest

from duo.diagnose.pulse import Pulse, Reading
from duo.engine.metrics import Metrics, StepRecord
from duo.spec.schedule import Schedule


def step(metrics: Metrics, end: float, n_tokens: int = 1, n_candidates: int = 0) -> None:
    metrics.steps.append(StepRecord(end, end, n_candidates, n_tokens - 1, n_tokens, Schedule.ASYNC))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_there_is_no_rate_before_two_steps_at_different_times(metrics: Metrics) -> None:
    pulse = Pulse(metrics)
    assert pulse.read() == Reading()
    step(metrics, 1.0)
    assert pulse.read() == Reading(n_tokens=1)
    step(metrics, 1.0)
    reading = Pulse(metrics).read()
    assert (reading.rate, reading.mean, reading.target) == (None, None, 0.0)


def test_rate_of_the_last_two_seconds_and_of_all(metrics: Metrics) -> None:
    pulse = Pulse(metrics)
    step(metrics, 1.0)
    for i in range(10):  # one token a second
        metrics.decoded(1.0 + i, 2.0 + i, 1)
        step(metrics, 2.0 + i)
    assert pulse.read().rate == 1.0
    for i in range(20):  # then ten steps of two tokens; the target waits half of the time, the draft works a quarter
        metrics.waited(11.0 + i / 10, 11.05 + i / 10)
        metrics.decoded(11.05 + i / 10, 11.1 + i / 10, 2)
        metrics.drafted(11.0 + i / 10, 11.025 + i / 10, 1)
        step(metrics, 11.1 + i / 10, n_tokens=2, n_candidates=4)
    metrics.pending(3)
    reading = pulse.read()
    assert (reading.n_tokens, reading.n_pending, reading.schedule) == (51, 3, Schedule.ASYNC)
    assert reading.rate == pytest.approx(20, rel=0.06)
    assert reading.mean == pytest.approx(50 / 12)
    assert reading.accepted == 0.25
    assert reading.target == pytest.approx(0.5, abs=0.03)
    assert reading.draft == pytest.approx(0.25, abs=0.03)
    assert pulse.read() == reading, "nothing has happened since"


def test_branches_are_counted_as_they_are_made(metrics: Metrics) -> None:
    pulse = Pulse(metrics)
    step(metrics, 1.0)
    step(metrics, 3.0)
    metrics.drafted(1.0, 2.0, 1)
    assert (pulse.read().n_prepared, pulse.read().hits) == (0, None)
    metrics.prepared(1.0, 2.0, 4, 3)
    assert (pulse.read().n_prepared, pulse.read().hits) == (3, None)
    metrics.prepared(2.0, 2.5, 4, 1)
    for hit in (True, False, True, True):
        metrics.resolved(0, hit)
    for _ in range(2):
        reading = pulse.read()
        assert (reading.n_prepared, reading.hits, reading.draft) == (4, 0.75, 0.75)


def test_rate_of_steps_longer_than_two_seconds(metrics: Metrics) -> None:
    for end in (10.0, 20.0, 30.0):
        metrics.decoded(end - 10, end - 1, 1)
        step(metrics, end)
    reading = Pulse(metrics).read()
    assert (reading.rate, reading.mean, reading.target, reading.draft) == (0.1, 0.1, 0.9, 0.0)


def test_rate_of_a_target_that_hangs(metrics: Metrics) -> None:
    for i in range(20):
        metrics.decoded(10 + i / 10, 10.1 + i / 10, 1)
        step(metrics, 10.1 + i / 10)
    at_work, hangs = Pulse(metrics).read(12.5), Pulse(metrics).read(32.0)
    assert at_work.rate == pytest.approx(10, rel=0.06)
    assert hangs.rate is not None
    assert hangs.rate < 1
    assert hangs.target < 0.1
