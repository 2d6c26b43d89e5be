"""Machines to try a policy on, measured and random, and what fixed settings reach on them, exactly."""

import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from duo.speculation.policy import Decision, Policy, StepCost

from benchmarks.samples import RISES
from benchmarks.virtual import Replay, constant, reading_s, replay
from duo.speculation.acceptance import Lookahead
from duo.speculation.constants import DEFAULT
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule
from duo.speculation.types import Proposal
from tests.fakes import CERTAIN

N_MAX, N_AHEAD = 8, 16


def times(known: Mapping[int, float]) -> tuple[float, ...]:
    """T(1) to T(9) in seconds, from some of them in ms; linear between these and constant beyond."""
    return tuple(np.interp(range(1, N_MAX + 2), sorted(known), [known[n] / 1000 for n in sorted(known)]).tolist())


_LARGE = times({1: 490, 2: 495, 4: 520, 5: 540, 8: 650, 9: 687})
SEPARATE = Machine(_LARGE, 0.025, _LARGE, 0.025, 0.004)  # two devices: the example of the design
FAST_DRAFT = Machine(  # one machine, a tiny draft
    times({1: 100, 2: 118, 3: 122, 9: 180}), 0.004, times({1: 115, 2: 130, 3: 140, 9: 200}), 0.005, 0.0005
)
TWO_CORES = Machine(  # a target that a concurrent draft slows down: SmolLM2 F32 and Q4_0 on two cores, about
    times({1: 54, 2: 66, 3: 72, 4: 77, 5: 85, 6: 85, 7: 95, 8: 107}),
    0.0173,
    times({1: 90, 2: 140, 3: 140, 4: 150, 5: 160, 6: 165, 7: 180, 8: 210}),
    0.026,
    0.003,
)
MACHINES = pytest.mark.parametrize(
    "machine", [SEPARATE, FAST_DRAFT, TWO_CORES], ids=["separate_devices", "fast draft", "two cores"]
)


class Case(NamedTuple):
    """A machine, and a draft of this acceptance."""

    machine: Machine
    acceptance: float


def prepared(
    machine: Machine, acceptance: float, n_tokens: int, branches: int | None, ranks: Sequence[float] = DEFAULT.ranks
) -> Replay:
    """What a policy that can only choose schedule async reaches on separate devices. See Policy and replay()."""
    policy = Policy(N_MAX, N_AHEAD, (Schedule.ASYNC,), separate_devices=True, branches=branches)
    return replay(policy, machine, constant(acceptance), n_tokens, ranks=ranks)


def random_case(seed: int) -> Case:
    """A cost curve that is flat, linear, has cliffs or dips, or any; a draft faster or slower than the target."""
    dice = random.Random(seed)
    rise = dice.choice(RISES)
    curve = [0.02]
    for _ in range(N_MAX):
        curve.append(max(curve[0], curve[-1] + curve[0] * rise(dice)))
    slower = dice.uniform(1, 1.6)
    concurrent = tuple(seconds * slower * dice.uniform(0.95, 1.05) for seconds in curve)
    draft_s = curve[0] * math.exp(dice.uniform(math.log(0.02), math.log(2)))
    machine = Machine(tuple(curve), draft_s, concurrent, draft_s * dice.uniform(1, 1.6), draft_s / 4)
    return Case(machine, dice.uniform(0, 0.95))


def expected(acceptance: float, k: int) -> float:
    """E: the tokens that a batch of `k` candidates brings."""
    return sum(acceptance**i for i in range(k + 1))


def sequential_rate(machine: Machine, acceptance: float, k: int) -> float:
    """Tokens/s when the draft always makes `k` tokens and the target then verifies them (Leviathan et al. 2023).

    When all were accepted the draft has to decode the last of them too, with the target's token.
    """
    read_s = (reading_s(machine, 2) - machine.draft_s) * acceptance**k if k else 0.0
    return expected(acceptance, k) / (k * machine.draft_s + read_s + machine.target_s[k])


def concurrent_rate(machine: Machine, acceptance: float, k: int, wait: int) -> float:
    """Tokens/s, both models concurrent, when the target always waits for `wait` candidates and verifies at most `k`.

    A rejection returns to the initial state, so a generation is a chain of independent cycles, and by the
    renewal-reward theorem the rate is E[tokens in a cycle] / E[time of a cycle]. Within a cycle nothing is random, so
    it is followed step by step, each step weighted with the probability that it is reached.
    """
    draft_s = machine.concurrent_draft_s
    tokens = seconds = 0.0
    reached = 1.0
    n_ready, left_s, late = 0, draft_s, False  # `late`: the target has already written what the draft works on
    for _ in range(3000):
        waited = 0.0
        while n_ready < wait:
            waited += left_s
            n_ready, left_s, late = n_ready + (not late), draft_s, False
        n = min(k, n_ready)
        end_s = machine.concurrent_target_s[n]
        tokens += reached * expected(acceptance, n)
        seconds += reached * (waited + end_s)
        while left_s <= end_s:  # while the target computes
            end_s -= left_s
            n_ready, late = n_ready + (not late), False
            left_s = draft_s if n_ready < N_AHEAD else math.inf
        left_s -= end_s
        late = late or n_ready == n
        reached *= acceptance ** (n if late else n + 1)
        if reached < 1e-6:
            break
        n_ready = max(0, n_ready - n - 1)
        left_s = min(left_s, draft_s)  # a draft that stood at the limit continues
    return tokens / seconds


@cache
def best_concurrent(machine: Machine, acceptance: float) -> float:
    """The best concurrent rate with a fixed (k, wait)."""
    return max(concurrent_rate(machine, acceptance, k, wait) for k in range(N_MAX + 1) for wait in range(k + 1))


def best_rate(machine: Machine, acceptance: float) -> float:
    """The best rate with any fixed settings: concurrent, sequential, or the target alone (k = 0)."""
    sequential = max(sequential_rate(machine, acceptance, k) for k in range(N_MAX + 1))
    return max(best_concurrent(machine, acceptance), sequential)


class Fixed(Policy):
    """Always waits for `wait` candidates and verifies at most `k`."""

    def __init__(self, k: int, wait: int, schedule: Schedule = Schedule.ASYNC, branches: int = 0) -> None:
        super().__init__(N_MAX, N_AHEAD, (schedule,), branches=branches)
        self._k = k
        self._wait = wait

    def decide(self, n_room: int, drafted: Proposal, *others: Proposal) -> Decision:
        if len(drafted.candidates) < self._wait and drafted.next_s < math.inf:
            return Decision(0, drafted.next_s + self.costs.draft_s)
        return Decision(min(len(drafted.candidates), self._k))

    def lookahead(self) -> Lookahead:
        return Lookahead(self.n_ahead, 0.0, CERTAIN) if self.schedule is Schedule.ASYNC else Lookahead()

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        """Learns nothing: the settings are fixed."""
