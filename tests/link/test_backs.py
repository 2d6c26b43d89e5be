"""Who drafts: the line of backs."""

from __future__ import annotations

from duo.config import SamplingConfig
from duo.engine.metrics import Metrics
from duo.link.backs import MOST, Backs, Brief, Job
from tests.engine.helpers import make_queue


class Standing:
    def __init__(self, name: str = "a back", model: str = "a model") -> None:
        self.name, self.model = name, model
        self.answers = True
        self.stalls = 0

    def notify(self) -> None: ...

    def usable(self, job: Job | None) -> bool:
        return self.answers

    def stall(self) -> None:
        self.stalls += 1


def line(n: int) -> tuple[Backs, list[Standing]]:
    backs, standing = Backs(), [Standing(str(i)) for i in range(n)]
    assert all(map(backs.join, standing))
    backs.begin(Job(make_queue(), Metrics(), Brief(SamplingConfig())))
    return backs, standing


def test_the_first_that_came_drafts_and_goes_on() -> None:
    backs, (first, second) = line(2)
    assert backs.active(otherwise=False) is first
    backs.end()
    backs.begin(Job(make_queue(), Metrics(), Brief(SamplingConfig())))
    assert backs.active(otherwise=False) is first
    backs.leave(first, "left")
    assert backs.active(otherwise=False) is second
    assert backs.counts["dropped: left"] == 1


def test_one_that_does_not_answer_stands_at_the_end_of_the_line() -> None:
    backs, (first, second) = line(2)
    assert backs.active(otherwise=False) is first
    first.answers = False
    assert backs.active(otherwise=False) is second
    assert first.stalls == 1
    first.answers = True
    assert backs.active(otherwise=False) is second
    second.answers = False
    assert backs.active(otherwise=False) is first


def test_when_none_answers_there_is_none() -> None:
    backs, (only,) = line(1)
    assert backs.active(otherwise=False) is only
    only.answers = False
    assert backs.active(otherwise=False) is None
    assert backs.active(otherwise=False) is None
    assert only.stalls == 1


def test_one_that_was_given_up_makes_room_for_others_in_this_text() -> None:
    backs, (first, second) = line(2)
    backs.give_up(first)
    assert backs.active(otherwise=False) is second
    backs.give_up(second)
    assert backs.active(otherwise=True) is None, "the local draft is better than either"
    assert backs.active(otherwise=False) is first, "without one they may try again"
    backs.end()
    backs.begin(Job(make_queue(), Metrics(), Brief(SamplingConfig())))
    assert backs.active(otherwise=True) is first


def test_there_is_room_for_some_and_no_more() -> None:
    backs, _ = line(MOST)
    assert not backs.join(Standing())
    assert backs.n_connected == MOST


def test_what_was_learned_is_kept_by_model_and_way_of_sampling() -> None:
    backs, _ = line(0)
    greedy, sampled = (backs.help_with(Brief(SamplingConfig(temp=temp))) for temp in (0.0, 1.0))
    greedy.learn(Standing(), {"latency_s": 0.5})
    assert greedy.learned(Standing("another")) == {"latency_s": 0.5}
    assert sampled.learned(Standing()) is None
    assert greedy.learned(Standing(model="other")) is None
    assert backs.latency_s == 0.5
