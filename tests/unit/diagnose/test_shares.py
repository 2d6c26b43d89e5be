from __future__ import annotations

import pytest

from duo.diagnose.shares import Share, Shares, end_of, first_token, where_it_went
from duo.diagnose.trace import Recording
from duo.engine.metrics import BranchRecord, Event, Resolution, StepRecord
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


def test_branches_are_a_lane_of_the_draft(recording: Recording) -> None:
    recording.events += [Event("branches", "branch", 2.0, 4.5, 3), Event("branches", "branch", 5.0, 5.5, 2)]
    recording.events.sort(key=lambda event: event.start)
    recording.branches = [BranchRecord(2.0, 4.5, 3, 3), BranchRecord(5.0, 5.5, 2, 1)]
    recording.resolutions = [Resolution(1.0, 0, True), Resolution(4.0, 0, True), Resolution(5.9, 1, False)]
    found = where_it_went(recording, 1.0, 6.0)
    assert found.shares[-2:] == [Share("branches", "branch", 2, 3.0), Share("branches", "idle", 0, 2.0)]
    assert (found.draft_s, found.overlap_s) == (3.5, 2.5), "a decode for the chain and for branches counts once"
    assert (found.n_drafted, found.n_prepared, found.n_contradicted, found.n_hits) == (6, 4, 2, 1)
    found = where_it_went(recording, 5.0, 6.0)
    assert (found.n_drafted, found.n_prepared, found.n_contradicted, found.n_hits) == (2, 1, 1, 0)


def decodes(times: list[float], n: int, *, beside: bool, start: float) -> list[Event]:
    """Decodes of `n` tokens that take `times`, one after the other, with or without a concurrent draft."""
    found = []
    for seconds in times:
        found.append(Event("target", "decode", start, start + seconds, n))
        found += [Event("draft", "draft", start, start + seconds, 1)] * beside
        start += seconds + 0.5
    return found


def slowdown(*groups: list[Event], about: dict[str, object] | None = None) -> Shares:
    events = sorted((event for group in groups for event in group), key=lambda event: event.start)
    return where_it_went(Recording(events, about=about or {}), 0.0, 1000.0)


def test_the_slowdown_by_a_concurrent_draft() -> None:
    alone, beside = decodes([1.0, 1.0, 9.0], 1, beside=False, start=0.0), [1.5, 1.5, 8.0]
    assert slowdown(alone, decodes(beside, 1, beside=True, start=100.0)).slowdown == 1.5
    assert slowdown(alone, decodes(beside, 2, beside=True, start=100.0)).slowdown is None, "of other sizes"
    assert slowdown(alone, decodes(beside[:2], 1, beside=True, start=100.0)).slowdown is None, "too few"
    two = decodes([2.0] * 6, 2, beside=False, start=200.0), decodes([5.0] * 6, 2, beside=True, start=300.0)
    assert slowdown(alone, decodes(beside, 1, beside=True, start=100.0), *two).slowdown == (3 * 1.5 + 6 * 2.5) / 9
    halves = decodes([9.0] * 4, 1, beside=False, start=500.0)
    drafts = [event._replace(lane="draft", name="draft", end=event.end - 4.5) for event in halves]
    found = slowdown(alone, decodes(beside, 1, beside=True, start=100.0), halves, drafts)
    assert found.slowdown == 1.5, "what overlaps in part says nothing"


def test_what_a_trace_says_about_the_hardware() -> None:
    assert (slowdown(about={"apart": False, "cores": 4}).apart, slowdown(about={"cores": 4}).cores) == (False, 4)
    damaged = slowdown(about={"apart": "no", "cores": [4]})
    assert (damaged.apart, damaged.cores) == (None, None)
