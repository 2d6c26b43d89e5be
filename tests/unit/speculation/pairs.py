"""A target's controller and one draft, with what a test says is known of them; machines to try them on."""

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.samples import RISES
from benchmarks.virtual import Replay, constant, reading_s, replay
from duo.speculation.acceptance import Lookahead
from duo.speculation.constants import DEFAULT
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.machine import Machine
from duo.speculation.modes import ALONE, ASYNC, SYNC, Mode, Schedule
from duo.speculation.types import Candidate, Origin, Plan, Planned, Proposal, SizedResult, StepCost
from tests.fakes import CERTAIN

N_MAX, N_AHEAD = 8, 16
SYNC_MODE, ASYNC_MODE = Mode("draft", SYNC), Mode("draft", ASYNC)

# T(n) in seconds
SLOW_TARGET = {1: 0.490, 2: 0.495, 5: 0.540, 9: 0.600}
FLAT = {n: 0.010 + 0.003 * (n - 1) for n in range(1, 10)}
STEEP = {n: 0.010 * n for n in range(1, 10)}
CLIFF = {1: 0.010, 2: 0.020, 3: 0.020, 4: 0.021, 5: 0.022, 6: 0.040, 7: 0.040, 8: 0.041, 9: 0.041}


def scores(acceptance: float, n: int = 500, confidence: float = 1.0) -> list[tuple[float, bool]]:
    """Candidates of which this share is right, evenly spread."""
    return [(confidence, int((i + 1) * acceptance) > int(i * acceptance)) for i in range(n)]


def written(n: int) -> Any:
    """A result of `n` tokens."""
    return SimpleNamespace(tokens=range(n))


def text(n_room: int = 100) -> Any:
    return SimpleNamespace(tokens=[1], n_room=n_room)


class Pair(NamedTuple):
    """A controller and its only draft."""

    controller: Controller
    draft: DraftEstimates

    def begin(self, n_prompt: int = 0, n_room: int | None = None, mode: str = "greedy") -> None:
        self.controller.begin([self.draft], n_prompt, n_room, mode)

    def use(self, mode: Mode) -> None:
        """Whatever the controller would choose."""
        self.controller.chooser.now = mode
        self.controller.follow()
        self.draft.schedule = mode.schedule

    def step(
        self, n_tokens: int, n_candidates: int, decode_s: float, total_s: float = 0.0, origin: Origin = Origin.DRAFT
    ) -> None:
        """The target has written `n_tokens`."""
        cost = StepCost(n_candidates, decode_s, total_s or decode_s, origin)
        self.controller.learn([written(n_tokens)], cost)

    def plan(
        self, confidences: Sequence[float] = (), next_s: float = math.inf,
        found: Sequence[tuple[float, float]] | None = None, n_room: int = 100,
    ) -> Plan:  # fmt: skip
        """What is done with a draft's candidates of these `confidences`, and those `found` in the text.

        Of the latter: (chance, observations). They are the draft's, and more.
        """
        drafted = Proposal([Candidate(i, each) for i, each in enumerate(confidences)], next_s, draft=self.draft.name)
        candidates = [Candidate(i, 0.0) for i in range(len(found or ()))]
        looked_up = Proposal(candidates, origin=Origin.LOOKUP, chances=found or ())
        return self.controller.plan([text(n_room)], [drafted, *([] if found is None else [looked_up])])

    def replay(self, machine: Machine, acceptance: float, n_tokens: int, seed: int = 0, **more: Any) -> Replay:
        return replay(*self, machine, constant(acceptance, seed), n_tokens, **more)

    def rates(self) -> dict[Schedule, float]:
        return {mode.schedule: rate for mode, rate in self.controller.prospects.rates().items()}

    def state(self) -> Any:
        """What profiles keep."""
        return json.loads(json.dumps([self.controller.target.state(), self.draft.state()]))

    def restore(self, state: Any) -> bool:
        return self.controller.target.restore(state[0]) and self.draft.restore(state[1])


def pair(n_max: int = N_MAX, schedules: Iterable[Schedule] = Schedule, n_most: int = 0, **options: Any) -> Pair:
    """Nothing is known."""
    controller = Controller(n_most)
    return Pair(controller, DraftEstimates(controller.target, n_max, N_AHEAD, tuple(schedules), **options))


def knowing(
    target_s: Mapping[int, float], draft_s: float = 0.005, acceptance: float | None = None,
    schedules: Iterable[Schedule] = (ASYNC,), mode: str = "greedy", **options: Any,
) -> Pair:  # fmt: skip
    """T(n), t_d and a(c) have been measured, the last in a mode of sampling."""
    made = pair(schedules=schedules, **options)
    made.begin(mode=mode)
    if acceptance is not None:
        made.draft.learn_scores(scores(acceptance))
    for n, seconds in target_s.items():
        made.controller.costs.add(n, seconds)
    made.draft.learn_draft(1, draft_s)
    made.step(1, 0, target_s[1])
    return made


# Machines


def times(known: Mapping[int, float]) -> tuple[float, ...]:
    """T(1) to T(9) in seconds, from some of them in ms; linear between these and constant beyond."""
    return tuple(np.interp(range(1, N_MAX + 2), sorted(known), [known[n] / 1000 for n in sorted(known)]).tolist())


_LARGE = times({1: 490, 2: 495, 4: 520, 5: 540, 8: 650, 9: 687})
SEPARATE = Machine(_LARGE, 0.025, _LARGE, 0.025, 0.004)  # two devices: the example of the design
FAST_DRAFT = Machine(  # one machine, a tiny draft
    times({1: 100, 2: 118, 3: 122, 9: 180}), 0.004, times({1: 115, 2: 130, 3: 140, 9: 200}), 0.005, 0.0005
)
TWO_CORES = Machine(  # a target that a concurrent draft slows down: SmolLM2 F32 and Q4_0 on two cores, about
    times({1: 54, 2: 66, 3: 72, 4: 77, 5: 85, 6: 85, 7: 95, 8: 107}), 0.0173,
    times({1: 90, 2: 140, 3: 140, 4: 150, 5: 160, 6: 165, 7: 180, 8: 210}), 0.026, 0.003,
)  # fmt: skip
MACHINES = pytest.mark.parametrize(
    "machine", [SEPARATE, FAST_DRAFT, TWO_CORES], ids=["separate_devices", "fast draft", "two cores"]
)


class Case(NamedTuple):
    """A machine, and a draft of this acceptance."""

    machine: Machine
    acceptance: float


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


def prepared(
    machine: Machine, acceptance: float, n_tokens: int, branches: int | None, ranks: Sequence[float] = DEFAULT.ranks,
    seed: int = 0,
) -> Replay:  # fmt: skip
    """What is reached on separate devices if only schedule async is allowed. See DraftEstimates and replay()."""
    is_far = machine.latency_s > 0
    made = pair(schedules=(ASYNC,), separate_devices=True, branches=branches, remote=is_far, aborts=machine.aborts)
    return made.replay(machine, acceptance, n_tokens, seed, ranks=ranks)


# What fixed settings reach on them, exactly


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


class Certain(DraftEstimates):
    """Of a draft that runs ahead as far as it may."""

    def lookahead(self) -> Lookahead:
        return Lookahead(self.n_ahead, 0.0, CERTAIN) if self.schedule is ASYNC else Lookahead()


class Fixed(Controller):
    """Always waits for `wait` candidates of its draft and verifies at most `k`. Learns nothing."""

    def __init__(self, k: int, wait: int) -> None:
        super().__init__()
        self._k, self._wait = k, wait

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        (drafted,), draft = proposals, self.drafts["draft"]
        if self.mode != ALONE and len(drafted.candidates) < self._wait and drafted.next_s < math.inf:
            times = draft.costs.concurrent if self.schedule is ASYNC else draft.costs.alone
            return Plan(proposer=0, wait_s=drafted.next_s + times.token_s)
        return Plan(drafted.candidates[: self._k], 0)

    def learn(self, results: Sequence[SizedResult], cost: StepCost | None) -> None: ...


def fixed(k: int, wait: int, schedule: Schedule = ASYNC, **options: Any) -> Pair:
    controller = Fixed(k, wait)
    return Pair(controller, Certain(controller.target, N_MAX, N_AHEAD, (schedule,), **options))
