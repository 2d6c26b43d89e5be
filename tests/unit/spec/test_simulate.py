import math
from collections.abc import Sequence
from itertools import islice

import pytest

from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Machine, constant, drawn, predict, replay
from tests.unit.spec.machines import APART, FAST_DRAFT, N_AHEAD, N_MAX, TWO_CORES
from tests.unit.spec.renewal import Fixed, best_fixed, best_turns, expected, fixed_rate


def test_the_policy_finds_the_best_fixed_settings_of_the_example() -> None:
    """T(1, 2, 4, 5, 8) = 490, 495, 520, 540, 650 ms, t_d = 25 ms, α = 0.8: wait for 4 and verify up to 6."""
    rate, k, wait = best_fixed(APART, 0.8)
    assert (k, wait) == (6, 4)
    assert rate == pytest.approx(5.59, abs=0.005)
    found = replay(Policy(N_MAX, N_AHEAD, (Schedule.ASYNC,)), APART, constant(0.8), 20_000)
    assert found.rate >= 0.97 * rate


@pytest.mark.parametrize("machine", [APART, FAST_DRAFT, TWO_CORES], ids=["apart", "fast draft", "two cores"])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_left_to_itself_the_policy_finds_the_best_schedule(machine: Machine, acceptance: float) -> None:
    found = replay(Policy(N_MAX, N_AHEAD), machine, constant(acceptance), 20_000)
    assert found.rate >= 0.97 * max(best_fixed(machine, acceptance)[0], best_turns(machine, acceptance))


@pytest.mark.parametrize("schedule", ALL)
def test_a_replay_accounts_for_every_token_step_and_second(schedule: Schedule) -> None:
    found = replay(Policy(N_MAX, N_AHEAD, (schedule,)), APART, constant(0.8), 1000)
    assert 1000 <= found.tokens <= 1000 + N_MAX
    assert found.tokens_in == {other: found.tokens if other is schedule else 0 for other in ALL}
    assert found.tokens <= sum(k + 1 for k in found.n_verified)
    decodes_s = sum(APART.target_s[k] for k in found.n_verified)
    assert found.seconds == pytest.approx(decodes_s + found.waited_s)
    assert found.rate == pytest.approx(found.tokens / found.seconds)


def test_a_replay_of_the_target_alone_takes_its_time_per_token() -> None:
    found = replay(Policy(N_MAX, N_AHEAD, (Schedule.OFF,)), APART, constant(0.8), 1000)
    assert found.seconds == pytest.approx(1000 * 0.490)


def test_a_replay_of_a_perfect_draft_in_turns_writes_full_batches() -> None:
    found = replay(Fixed(4, 4, Schedule.SYNC), Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1), constant(1.0), 1000)
    assert set(found.n_verified[1:]) == {4}
    assert found.tokens == 5 * len(found.n_verified) or found.n_verified[0] < 4
    assert found.rate == pytest.approx(expected(1.0, 4) / 0.9, rel=0.01)


def test_a_replay_of_a_hopeless_draft_writes_one_token_per_step() -> None:
    found = replay(Fixed(4, 2), APART, constant(0.0), 1000)
    assert found.tokens == len(found.n_verified) == 1000


def test_a_wait_outlasts_a_token_that_comes_too_late() -> None:
    """A draft slower than the target: what it was making when the step ended is of no use, the next one is."""
    slow = Machine([0.1] * 9, 0.15, [0.1] * 9, 0.15)
    for k, wait in ((1, 1), (4, 2)):
        found = replay(Fixed(k, wait), slow, constant(0.8), 5000).rate
        assert found == pytest.approx(fixed_rate(slow, 0.8, k, wait), rel=0.03)


class LateTurns(Fixed):
    """Begins to take turns, with one candidate each, when the target has written 100 tokens alone."""

    def __init__(self) -> None:
        super().__init__(1, 1, Schedule.SYNC)
        self._written = 0

    @property
    def schedule(self) -> Schedule:
        return Schedule.SYNC if self._written >= 100 else Schedule.OFF

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        return super().decide(confidences, n_room, next_s) if self.schedule is Schedule.SYNC else Decision(0)

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        self._written += n_tokens


def test_a_draft_that_was_off_has_to_read_what_was_written_meanwhile() -> None:
    machine = Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1, read_s=0.05)
    found = replay(LateTurns(), machine, constant(0.0), 102)
    assert found.n_verified == [0] * 100 + [1] * 2
    assert found.seconds == pytest.approx(102 * 0.5 + 2 * 0.1 + 100 * 0.05, abs=0.06)


def test_constant_guesses_are_right_as_often_as_asked_for_and_the_same_each_time() -> None:
    guesses = list(islice(constant(0.3, 5), 5000))
    assert sum(right for _, right in guesses) / 5000 == pytest.approx(0.3, abs=0.02)
    assert guesses == list(islice(constant(0.3, 5), 5000))
    assert guesses != list(islice(constant(0.3, 6), 5000))
    assert all(right for _, right in islice(constant(1.0), 100))
    assert not any(right for _, right in islice(constant(0.0), 100))


def test_drawn_guesses_are_those_that_were_observed() -> None:
    seen = [(0.1, False), (2.0, True), (3.0, True), (4.0, True)]
    guesses = list(islice(drawn(seen), 4000))
    assert set(guesses) == set(seen)
    assert sum(right for _, right in guesses) / 4000 == pytest.approx(0.75, abs=0.03)


def test_nothing_is_predicted_from_too_little() -> None:
    made = Policy(N_MAX, N_AHEAD)
    assert predict(made) is None
    made.learn_step(1, StepCost(0, 0.1, 0.1))
    made.learn_draft(1, 0.01)
    assert predict(made) is None, "no guess was scored"
    made.learn_scores([(1.0, True)])
    assert predict(made) is not None


@pytest.mark.parametrize("machine", [APART, FAST_DRAFT, TWO_CORES], ids=["apart", "fast draft", "two cores"])
def test_what_is_predicted_from_a_run_is_what_a_long_run_reaches(machine: Machine) -> None:
    made = Policy(N_MAX, N_AHEAD)
    found = replay(made, machine, constant(0.8), 5000)
    predicted = predict(made)
    assert predicted is not None
    assert predicted == pytest.approx(found.rate, rel=0.05)
    assert predicted == predict(made), "and it does not depend on chance"
    assert not math.isnan(predicted)
