"""What duo's own events say, from events that can be worked out by hand."""

from __future__ import annotations

import pytest

from duo.bench.curves import acceptance, target_times, timeline
from duo.bench.results import Results
from tests.unit.bench.samples import ASYNC, LOOP, PEER, PLAIN, metrics, sample


def measured() -> Results:
    found = Results([PLAIN, ASYNC, PEER])
    found.add(sample(PEER, 0, "chat", 100))
    found.add(sample(ASYNC, 0, "chat", 100, metrics=metrics()))
    return found


def test_the_time_of_each_size() -> None:
    times = target_times(measured())
    assert list(times) == ["async"]
    assert times["async"] == pytest.approx({1: 10.0, 3: 20.0})


def test_the_acceptance_at_each_position() -> None:
    # Of 12 batches of two, 8 accepted the first candidate and 4 the second as well.
    assert acceptance(measured()) == {"async": [pytest.approx(8 / 12), pytest.approx(4 / 12)]}


def test_rounds_that_loop_do_not_count() -> None:
    found = Results([PLAIN, ASYNC])
    found.add(sample(PLAIN, 0, "chat", 100, LOOP))
    found.add(sample(ASYNC, 0, "chat", 100, LOOP, metrics=metrics()))
    assert target_times(found) == {}
    assert acceptance(found) == {}


def test_the_timeline_begins_with_the_request_and_ends_with_a_decode() -> None:
    found = timeline(measured())
    assert found is not None
    assert (found.contestant.mode, found.start) == ("async", 1.0)
    assert found.end in [event.end for event in found.events if event.name == "decode"]
    assert {event.lane for event in found.events} == {"target", "draft"}


def test_without_a_draft_at_work_there_is_no_timeline() -> None:
    found = Results([PLAIN])
    found.add(sample(PLAIN, 0, "chat", 100))
    assert timeline(found) is None
