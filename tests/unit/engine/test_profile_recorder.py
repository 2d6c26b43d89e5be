"""What a profile keeps: no times that were measured while other programs computed."""

from __future__ import annotations

import pytest

from duo.engine import profile
from duo.engine.profile import ProfileRecorder
from duo.spec.policy import Policy, StepCost

QUIET, BUSY = 0.0, 1.7


class Watched:
    """A policy that learns text by text, on a machine where other programs use so many cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_others = QUIET
        monkeypatch.setattr(profile, "other_cpu_use", lambda _: self.n_others)
        self.policy = Policy(4, 8)
        self.recorder = ProfileRecorder(self.policy, 64)

    def text(self, seconds: float, n_others: float) -> None:
        self.n_others = n_others
        with self.recorder.watching():
            self.policy.begin(1, mode="greedy")
            self.policy.learn_draft(1, seconds / 2)
            for _ in range(3):
                self.policy.learn_step(1, StepCost(0, seconds, seconds))
            self.policy.learn_scores([(1.0, True)] * 4)

    @property
    def kept_s(self) -> float | None:
        """T(1) in the profile."""
        kept: dict[str, list[float]] = self.recorder.state()["costs"]["0"][0]["target_s"]
        return kept["1"][0] if kept else None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_nothing_is_kept_before_anything_was_learned(watched: Watched) -> None:
    assert watched.recorder.state() == {}


def test_all_is_kept_of_a_quiet_machine(watched: Watched) -> None:
    watched.text(0.1, QUIET)
    watched.text(0.2, QUIET)
    assert watched.recorder.state() == watched.policy.state()
    assert watched.recorder.n_others == 0


def test_of_a_busy_machine_only_what_does_not_depend_on_it_is_kept(watched: Watched) -> None:
    watched.text(0.1, BUSY)
    assert watched.recorder.n_others > 0
    assert watched.kept_s is None
    kept = watched.recorder.state()
    assert [costs["draft_s"] for costs in kept["costs"]["0"]] == [{}, {}]
    assert kept["acceptance"] == watched.policy.state()["acceptance"] != {}
    Policy(4, 8).restore(kept)


def test_the_times_before_the_first_disturbance_are_kept(watched: Watched) -> None:
    watched.text(0.1, QUIET)
    for seconds, n_others in ((0.5, BUSY), (0.4, QUIET)):  # which began with what the busy machine has taught
        watched.text(seconds, n_others)
        assert watched.kept_s == pytest.approx(0.1)


def test_times_with_the_cores_that_others_leave_are_kept_as_such(watched: Watched) -> None:
    watched.policy.use_cores(1)
    watched.text(0.2, BUSY)
    kept = watched.recorder.state()["costs"]
    assert kept["1"][0]["target_s"]["1"][0] == pytest.approx(0.2)
    assert kept["0"][0]["target_s"] == {}


def test_a_failed_text_may_have_been_disturbed_too(watched: Watched) -> None:
    watched.n_others = BUSY
    with pytest.raises(ValueError, match="failed"), watched.recorder.watching():
        raise ValueError("failed")
    assert watched.recorder.n_others > 0


def test_what_is_measured_while_loading_counts(watched: Watched) -> None:
    watched.n_others = BUSY
    watched.recorder.check()
    watched.text(0.1, QUIET)
    assert watched.kept_s is None
