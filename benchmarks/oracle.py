"""The best that fixed settings reach in a text, in virtual time: the measure of benchmarks/regret.py."""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.virtual import MODE, NoisyController, NoisyEstimates, Replay, reading_s, recorded, replay
from benchmarks.virtual_clock import Load
from duo.speculation.draft_estimates import DraftState
from duo.speculation.machine import Machine
from duo.speculation.modes import ALL, Schedule
from duo.speculation.target_costs import TargetState

N_MAX, N_AHEAD = 16, 32
N_PROMPT = 40  # tokens
OFF = "off"

State = tuple[TargetState, DraftState]
Text = tuple[tuple[float, bool], ...]  # of each prediction of the draft: its confidence, and whether it is right


class Pair(NamedTuple):
    """A target's controller, and what it knows of its draft."""

    controller: NoisyController
    draft: NoisyEstimates

    def state(self) -> State:
        """What was learned, as JSON types."""
        return self.controller.target.state(), self.draft.state()


@dataclass(frozen=True, slots=True)
class Case:
    """A pair on a machine, and the predictions of its draft in successive texts."""

    name: str  # machine/pair
    machine: Machine
    texts: tuple[Text, ...]
    separate_devices: bool = False  # whether the draft has a device of its own
    acceptance: float | None = None  # of synthetic texts; None: recorded ones
    n_prompt: int = N_PROMPT
    seed: int = 0
    load: Load | None = None  # what else the machine computes
    quotes: int | None = None  # the seed of what a lookup finds; None: there is no lookup

    def pair(
        self, schedules: Sequence[Schedule] = ALL, state: State | None = None, branches: int | None = None
    ) -> Pair:
        """A controller that knows nothing, or what an earlier one had learned: its state() passes through JSON."""
        machine, controller = self.machine, NoisyController(0 if self.quotes is None else N_MAX)
        draft = NoisyEstimates(
            controller.target, N_MAX, N_AHEAD, schedules, remote=machine.latency_s > 0,
            separate_devices=self.separate_devices, branches=branches, aborts=machine.aborts, noise=controller.noise,
        )  # fmt: skip
        if state is not None:
            learned = json.loads(json.dumps(state))
            if not (controller.target.restore(learned[0]) and draft.restore(learned[1])):
                raise ValueError("what was learned cannot be restored")
        return Pair(controller, draft)

    def run(self, pair: Pair, text: Text, n_tokens: int, seed: int = 0) -> Replay:
        """Generate `text`. The disturbances are those of this case and `seed`."""
        noise = 1000 * self.seed + seed
        return replay(
            *pair, self.machine, recorded(text), n_tokens, self.n_prompt, noise, load=self.load, quotes=self.quotes
        )

    def known(self, schedule: Schedule, text: Text, n_tokens: int, branches: int | None = None) -> Pair:
        """A controller of one schedule that knows all costs, and how often this text's candidates are accepted."""
        controller, draft = made = self.pair((schedule,), branches=branches)
        controller.begin([draft], self.n_prompt, sampling=MODE)
        scores = [text[i % len(text)] for i in range(n_tokens)]
        draft.learn_scores(random.Random(0).sample(scores, n_tokens))  # in any order: the text does not change
        draft.learn_draft(N_PROMPT, N_PROMPT * self.machine.read_s)
        self.machine.teach(draft)
        return made

    def forced(self, schedule: Schedule, text: Text, n_tokens: int, branches: int | None = 0) -> Replay:
        """A text with one schedule, by a controller that knows everything and measures exactly."""
        exact = replace(self, machine=replace(self.machine, noise=0.0))
        return exact.run(exact.known(schedule, text, n_tokens, branches), text, n_tokens)


@dataclass(frozen=True, slots=True)
class Best:
    """The best fixed setting of a text, with hindsight. Rates in tokens/s."""

    setting: str
    rate: float
    late: float  # of the second half, with the best setting for that
    alone: float = 0.0  # the rate of the target alone


def best(case: Case, text: Text, n_tokens: int) -> Best:
    """The oracle: off, 1 to N_MAX candidates in turns, and each schedule forced, with and without branches."""
    alone_s = n_tokens * case.machine.target_s[0]
    alone = n_tokens / (alone_s if case.load is None else case.load.take(0.0, alone_s)[0])
    found = [Best(OFF, alone, alone)]
    found += [Best(name, run.rate, late(run, n_tokens // 2)) for name, run in fixed(case, text, n_tokens)]
    fastest = max(found, key=lambda each: each.rate)  # of equal ones, the target alone
    return replace(fastest, late=max(each.late for each in found), alone=alone)


def fixed(case: Case, text: Text, n_tokens: int) -> Iterator[tuple[str, Replay]]:
    """What each setting with a draft does. A remote draft is used concurrently only."""
    machine = case.machine
    if not machine.latency_s:
        for k in range(1, N_MAX + 1):
            yield f"k={k}", in_turns(machine, text, k, n_tokens, case.n_prompt, case.load)
        yield "sync", case.forced(Schedule.SYNC, text, n_tokens)
    if case.quotes is not None:
        yield "lookup", case.forced(Schedule.OFF, text, n_tokens)
    yield "async", case.forced(Schedule.ASYNC, text, n_tokens)
    if case.separate_devices and machine.branch_s:
        yield "prepared", case.forced(Schedule.ASYNC, text, n_tokens, branches=None)


def in_turns(
    machine: Machine, text: Text, k: int, n_tokens: int, n_prompt: int = N_PROMPT, load: Load | None = None
) -> Replay:
    """Always draft `k` candidates and verify these: schedule sync without a policy."""
    found, unread = Replay(), n_prompt  # tokens that the draft has not decoded
    most = k
    while found.tokens < n_tokens:
        accepted, k = 0, min(most, n_tokens - found.tokens - 1)
        while accepted < k and text[(found.tokens + accepted) % len(text)][1]:
            accepted += 1
        # After k accepted candidates the draft has not decoded the last of them.
        seconds = (reading_s(machine, unread) + (k - 1) * machine.draft_s if k else 0.0) + machine.target_s[k]
        unread = 2 if accepted == k else 1
        end_s = found.seconds + seconds if load is None else load.take(found.seconds, seconds)[0]
        found.add(accepted + 1, end_s)
    return found


def perfect(machine: Machine, text: Text, n_tokens: int) -> float:
    """Tokens/s of a draft that is told at the start of each verification which outcome will come true.

    Both models compute at once. The target waits for a fixed number of candidates, and verifies at most another: the
    best two for this text.
    """
    ks = range(min(N_MAX, len(machine.concurrent_target_s) - 1) + 1)
    return max(told(machine, text, k, n_least, n_tokens).rate for k in ks for n_least in range(k + 1))


def told(machine: Machine, text: Text, k: int, n_least: int, n_tokens: int) -> Replay:
    """See perfect(): the target waits for `n_least` candidates and verifies at most `k`."""
    draft_s, one_way_s = machine.concurrent_draft_s, machine.latency_s / 2
    found, now, n_ready, free_s = Replay(), 0.0, 0, 0.0  # candidates, and when the draft begins the next one
    while found.tokens < n_tokens:
        while n_ready < n_least or free_s + draft_s + one_way_s <= now:
            free_s, n_ready = free_s + draft_s, n_ready + 1
            now = max(now, free_s + one_way_s)
        n = min(k, n_ready, n_tokens - found.tokens - 1)
        right = [text[(found.tokens + i) % len(text)][1] for i in range(n + 1)]
        n_new = next((i for i in range(n) if not right[i]), n) + 1
        if n_ready >= n_new and all(right[:n_new]):
            n_ready -= n_new
        else:  # the draft begins anew, with what will come true; an unfinished decode is in vain
            told_s, n_ready = now + one_way_s, 0
            free_s = max(free_s, told_s + (0.0 if machine.aborts else (free_s - told_s) % draft_s))
        now += machine.concurrent_target_s[n]
        found.add(n_new, now)
    return found


def late(run: Replay, start: int) -> float:
    """The rate after the step that reaches `start` tokens, in tokens/s; 0 if that is the last one."""
    tokens, seconds = run.ends[bisect_left(run.ends, (start, 0.0))]
    return (run.tokens - tokens) / (run.seconds - seconds) if run.tokens > tokens else 0.0
