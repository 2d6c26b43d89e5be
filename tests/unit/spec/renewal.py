"""What fixed settings reach on a machine, exactly, and a policy that follows them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine
from tests.unit.spec.machines import N_AHEAD, N_MAX


def expected(acceptance: float, k: int) -> float:
    """E: the tokens that a batch of `k` candidates brings."""
    return sum(acceptance**i for i in range(k + 1))


def turns_rate(machine: Machine, acceptance: float, k: int) -> float:
    """Tokens/s when the draft makes `k` tokens and the target verifies them, always (Leviathan et al. 2023).

    When all were accepted the draft has to read the last of them too.
    """
    read_s = machine.read_s * acceptance**k if k else 0.0
    return expected(acceptance, k) / (k * machine.draft_s + read_s + machine.target_s[k])


def fixed_rate(machine: Machine, acceptance: float, k: int, wait: int, n_ahead: int = N_AHEAD) -> float:
    """Tokens/s, both at the same time, when the target always waits for `wait` candidates and verifies at most `k`.

    A rejection puts everything back to the start, so a generation is a chain of independent cycles, and by the
    renewal-reward theorem the rate is E[tokens in a cycle] / E[time of a cycle]. Until the cycle ends nothing in it is
    left to chance, so it is followed step by step, each step weighed with the probability that it is reached.
    """
    draft_s = machine.beside_draft_s
    tokens = seconds = 0.0
    reached = 1.0
    n_ready, left_s, late = 0, draft_s, False  # `late`: the target has meanwhile written what the draft works on
    for _ in range(3000):
        waited = 0.0
        while n_ready < wait:
            waited += left_s
            n_ready, left_s, late = n_ready + (not late), draft_s, False
        n = min(k, n_ready)
        end_s = machine.beside_target_s[n]
        tokens += reached * expected(acceptance, n)
        seconds += reached * (waited + end_s)
        while left_s <= end_s:  # while the target computes
            end_s -= left_s
            n_ready, late = n_ready + (not late), False
            left_s = draft_s if n_ready < n_ahead else math.inf
        left_s -= end_s
        late = late or n_ready == n
        reached *= acceptance ** (n if late else n + 1)
        if reached < 1e-6:
            break
        n_ready = max(0, n_ready - n - 1)
        left_s = min(left_s, draft_s)  # one that stood at the limit goes on
    return tokens / seconds


def best_fixed(machine: Machine, acceptance: float) -> tuple[float, int, int]:
    """The best rate of both at the same time with a fixed (k, wait), and these."""
    pairs = [(k, wait) for k in range(N_MAX + 1) for wait in range(k + 1)]
    return max((fixed_rate(machine, acceptance, k, wait), k, wait) for k, wait in pairs)


def best_turns(machine: Machine, acceptance: float) -> float:
    """The best rate of taking turns with a fixed k; with k = 0 it is the target's alone."""
    return max(turns_rate(machine, acceptance, k) for k in range(N_MAX + 1))


class Fixed(Policy):
    """Always waits for `wait` candidates and verifies at most `k`."""

    def __init__(self, k: int, wait: int, schedule: Schedule = Schedule.ASYNC) -> None:
        super().__init__(N_MAX, N_AHEAD, (schedule,))
        self._k = k
        self._wait = wait

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        if len(confidences) < self._wait and next_s < math.inf:
            return Decision(0, next_s + self.costs.draft_s)
        return Decision(min(len(confidences), self._k))

    def may_draft(self, confidences: Sequence[float]) -> bool:
        return self.schedule is Schedule.ASYNC and len(confidences) < self.n_ahead

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        """Nothing: what is fixed is not learned."""
