from __future__ import annotations

import pytest

from duo.diagnose.shares import Share, end_of, first_token, united, where_it_went
from duo.diagnose.trace import Recording
from duo.engine.metrics import Event, StepRecord
from duo.spec.schedule import Schedule


@pytest.fixture
def recording() -> Recording:
    """A prompt of a second; then the target computes 1-3 and 4-6 and waits between, the draft computes 2-5."""
    events = [
        Event("target", "prompt", 0.0, 1.0, 9),
        Event("target", "decode", 1.0, 3.0, 1),
        Event("draft", "draft", 2.0, 4.5, 1),
        Event("draft", "rollback", 2.0, 2.5, 3),
        Event("target", "wait", 3.0, 4.0, 0),
        Event("target", "decode", 4.0, 6.0, 2),
        Event("draft", "cancelled", 4.5, 5.0, 1),
        Event("target", "commit", 6.0, 6.0, 2),
    ]
    steps = [
        StepRecord(1.0, 1.0, 0, 0, 1, Schedule.OFF),
        StepRecord(3.0, 3.0, 0, 0, 1, Schedule.OFF),
        StepRecord(6.0, 6.0, 1, 1, 2, Schedule.ASYNC),
    ]
    return Recording(events, steps)


def test_shares_account_for_all_the_time_of_each_lane(recording: Recording) -> None:
    found = where_it_went(recording, 1.0, 6.0)
    assert found.shares == [
        Share("target", "decode", 2, 4.0),
        Share("target", "wait", 1, 1.0),
        Share("target", "idle", 0, 0.0),
        Share("draft", "draft", 1, 2.0),
        Share("draft", "cancelled", 1, 0.5),
        Share("draft", "rollback", 1, 0.5),
        Share("draft", "idle", 0, 2.0),
    ]
    assert found.share("target", "wait") == 0.2
    for lane in ("target", "draft"):
        assert sum(share.seconds for share in found.shares if share.lane == lane) == found.seconds == 5.0
    assert (found.target_s, found.draft_s, found.overlap_s) == (4.0, 3.0, 2.0)


def test_shares_of_a_part_of_the_recording(recording: Recording) -> None:
    found = where_it_went(recording, 2.5, 3.5)
    assert found.shares == [
        Share("target", "decode", 1, 0.5),
        Share("target", "wait", 1, 0.5),
        Share("target", "idle", 0, 0.0),
        Share("draft", "draft", 1, 1.0),
        Share("draft", "idle", 0, 0.0),
    ]
    assert (found.overlap_s, found.n_tokens) == (0.5, 1)


def test_tokens_are_counted(recording: Recording) -> None:
    found = where_it_went(recording, 1.0, 6.0)
    assert (found.n_tokens, found.n_drafted, found.n_verified, found.n_accepted) == (3, 1, 1, 1)
    assert found.tokens_by_schedule == {"off": 1, "async": 2}
    assert found.n_judged == 1
    recording.steps += [StepRecord(6.0, 6.0, 8, 3, 4, Schedule.ASYNC), StepRecord(6.0, 6.0, 8, 0, 1, Schedule.ASYNC)]
    assert where_it_went(recording, 1.0, 6.0).n_judged == 1 + 4 + 1
    recording.steps.clear()
    assert where_it_went(recording, 1.0, 6.0).n_tokens is None


def test_the_generation_begins_after_the_prompt(recording: Recording) -> None:
    assert (first_token(recording), end_of(recording)) == (1.0, 6.0)
    recording.steps.clear()
    assert first_token(recording) == 1.0
    assert (first_token(Recording()), end_of(Recording())) == (0.0, 0.0)


def test_overlapping_events_are_united() -> None:
    events = [Event("draft", "draft", start, end, 1) for start, end in ((0, 2), (1, 3), (3, 4), (5, 9), (6, 7))]
    assert united(events) == [(0, 4), (5, 9)]
    assert united([]) == []
