"""Which of the connected remote drafts is used."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from duo.speculation.policy import StepCost

from duo.remote.drafts import MAX_DRAFTS, RemoteDraft, RemoteDrafts


class Standing(SimpleNamespace):
    """What RemoteDrafts knows of a draft."""

    def __init__(self, name: str = "a draft") -> None:
        policy = SimpleNamespace(prefers_target_alone=False, latency_s=0.25)
        super().__init__(name=name, policy=policy, current=None, is_unable=False, has_stalled=False, answers=True)

    @property
    def is_usable(self) -> bool:
        return bool(self.answers and not self.is_unable)

    def interrupt(self) -> None:
        self.is_closed = True

    @property
    def draft(self) -> RemoteDraft:
        return cast(RemoteDraft, self)


def line(n: int) -> tuple[RemoteDrafts, list[Standing]]:
    drafts, standing = RemoteDrafts(), [Standing(str(i)) for i in range(n)]
    assert all(drafts.join(one.draft) for one in standing)
    drafts.begin()
    return drafts, standing


def chosen(drafts: RemoteDrafts, *, has_other: bool = False) -> Any:
    """The draft that is chosen, which the target then uses."""
    found: Any = drafts.choose(has_other=has_other)
    if found is not None:
        found.current = ()
    return found


def test_the_first_that_answers_is_used_and_one_that_does_not_moves_to_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "duo.remote")
    drafts, (first, second) = line(2)
    assert chosen(drafts) is first
    drafts.begin()
    first.answers = False
    assert chosen(drafts) is second
    first.answers = True
    assert chosen(drafts) is second
    second.answers = False
    assert chosen(drafts) is first
    first.answers = False
    assert chosen(drafts) is chosen(drafts) is None
    assert drafts.counts["stalled"] == 3
    lost, found = "draft {} does not answer", "draft {} is in use"
    said = (found, 0), (lost, 0), (found, 1), (lost, 1), (found, 0), (lost, 0)
    assert caplog.messages == [text.format(number) for text, number in said], "each once"
    second.answers = True
    drafts.leave(second.draft, "left")
    assert second.is_closed, "the target waits for its candidates no longer"
    assert chosen(drafts) is None
    assert (drafts.counts["dropped: left"], len(drafts.connected)) == (1, 1)


def test_a_draft_that_does_not_pay_is_given_up_for_this_text() -> None:
    drafts, (first, second) = line(2)
    assert chosen(drafts) is first
    first.policy.prefers_target_alone = True
    assert chosen(drafts) is second
    second.policy.prefers_target_alone = True
    assert chosen(drafts, has_other=True) is None, "the local draft is better than either"
    assert chosen(drafts) is first, "without one they are used again"
    first.current = second.current = None
    first.policy.prefers_target_alone = False
    drafts.begin()
    assert chosen(drafts, has_other=True) is first


def test_the_number_of_drafts_is_limited_but_for_the_leads_own() -> None:
    drafts, _ = line(MAX_DRAFTS)
    assert not drafts.join(Standing().draft)
    assert len(drafts.connected) == MAX_DRAFTS
    assert drafts.join(Standing().draft, always=True), "the lead's own"


def test_a_policy_begins_with_what_was_learned_about_its_model_and_mode() -> None:
    drafts = RemoteDrafts()
    policy = drafts.new_policy("a model")
    policy.begin(4, None, "greedy")
    for _ in range(50):
        policy.learn_step(1, StepCost(0, 0.02, 0.02))
        policy.learn_scores([(1.0, True)])
    policy.learn_latency(0.5)
    drafts.learn("a model", policy.state())

    same, other = drafts.new_policy("a model"), drafts.new_policy("another")
    same.begin(4, None, "greedy")
    assert (same.alone.target_s(1), same.latency_s) == (0.02, 0.5)
    learned = same.calibration.mean
    same.begin(4, None, "coupled")
    other.begin(4, None, "greedy")
    assert other.latency_s == 0
    assert same.calibration.mean == other.calibration.mean < learned
