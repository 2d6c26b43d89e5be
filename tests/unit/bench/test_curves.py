"""What duo's own events say, from events that can be worked out by hand."""

from __future__ import annotations

import pytest

from duo.bench.curves import acceptance, target_times, timeline
from duo.bench.results import Results
from tests.unit.bench.samples import ASYNC, LOOP, PEER, PLAIN, STORY, collect, metrics, sample


def measured(text: str = STORY) -> Results:
    samples = sample(PLAIN, 0, "chat", 100, text), sample(PEER, 0, "chat", 100)
    return collect([PLAIN, ASYNC, PEER], *samples, sample(ASYNC, 0, "chat", 100, metrics=metrics()))


def test_the_time_of_each_batch_size_and_the_acceptance_at_each_position() -> None:
    assert target_times(measured()) == {"async": pytest.approx({1: 10.0, 3: 20.0})}
    # Of 12 batches of two, 8 accepted the first candidate and 4 the second as well.
    assert acceptance(measured()) == {"async": [pytest.approx(8 / 12), pytest.approx(4 / 12)]}
    assert (target_times(measured(LOOP)), acceptance(measured(LOOP))) == ({}, {}), "a round that loops does not count"


def test_the_timeline_begins_with_the_request_and_ends_with_a_decode() -> None:
    found = timeline(measured())
    assert found is not None
    assert (found.contestant.mode, found.start) == ("async", 1.0)
    assert found.end in [event.end for event in found.events if event.name == "decode"]
    assert {event.lane for event in found.events} == {"target", "draft"}
    assert timeline(collect([PLAIN], sample(PLAIN, 0, "chat", 100))) is None, "no draft was used"
