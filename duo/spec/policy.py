"""Policy: how many candidates to verify, whether to wait for one more, and how far to draft ahead.

Everything it needs is measured while running: T(n), the target's time for a batch of n tokens; t_d, the draft's time
for one; a(c), the probability that a candidate of confidence c is accepted; and λ, the present rate. A batch of k
candidates of which the first i survive with probability s_i = a(c_1)···a(c_i) is worth

    value(k, wait) = 1 + Σ s_i - λ · (wait + T(k+1))

tokens. The k and the wait that make it largest also make the long-run rate largest, since λ is that rate
(the renewal-reward argument of Dinkelbach's method).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# The draft stops where its guesses survive less often than this: guessing on would only slow the target down, and
# the draft could start again sooner after a rejection when it is idle. See benchmarks/NOTES.md.
MIN_SURVIVAL = 0.2


class Mean:
    """A running mean that forgets: the first values weigh the same, later ones at least `weight`."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self.n = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """Take one more value into account."""
        self.n += 1
        self.value += max(self._weight, 1 / self.n) * (value - self.value)


class CostModel:
    """What decodes cost, in seconds, learned from those that were made."""

    def __init__(self) -> None:
        self._target: dict[int, Mean] = {}
        self._draft = Mean()

    @property
    def draft_s(self) -> float:
        """Time for one draft token; 0 while it is not known."""
        return self._draft.value

    def add_draft(self, seconds: float) -> None:
        """The draft decoded one token."""
        self._draft.add(seconds)

    def add_target(self, n: int, seconds: float) -> None:
        """The target decoded a batch of `n` tokens."""
        mean = self._target.setdefault(n, Mean())
        if mean.n == 1:
            # One interruption must not make this size look slow for ever: the better of the first two counts.
            mean.value = min(mean.value, seconds)
        mean.add(seconds if mean.n == 0 else min(seconds, 2 * mean.value))

    def target_s(self, n: int) -> float:
        """Time for a batch of `n` tokens.

        The curve has steps, so nothing can be said of a size that was not tried. It is taken to cost what the next
        smaller one does: hope makes it be tried.
        """
        known = [size for size in self._target if size <= n]
        return self._target[max(known)].value if known else 0.0


class Calibration:
    """a(c): how often candidates of confidence c (the gap between the draft's top two logits) are accepted."""

    EDGES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    PRIOR_WEIGHT = 4.0  # as if so many candidates had been seen in each bin
    MEMORY = 0.98  # weight of what a bin has seen, each time it sees one more

    def __init__(self) -> None:
        # A guess for a small draft of the same family, with the gap in the middle of each bin.
        middles = [(low + high) / 2 for low, high in zip((0.0, *self.EDGES), (*self.EDGES, 8.0), strict=True)]
        self._seen = [self.PRIOR_WEIGHT] * len(middles)
        self._accepted = [self.PRIOR_WEIGHT * (1 - 0.6 * math.exp(-gap / 1.5)) for gap in middles]
        self._all = Mean(weight=0.02)
        self._all.add(0.7)

    @property
    def mean(self) -> float:
        """How often a candidate of unknown confidence is accepted."""
        return self._all.value

    def probability(self, confidence: float) -> float:
        """How often a candidate of this confidence is accepted, if all before it are."""
        i = bisect_right(self.EDGES, confidence)
        return self._accepted[i] / self._seen[i]

    def add(self, confidence: float, accepted: bool) -> None:
        """A candidate turned out right or wrong."""
        i = bisect_right(self.EDGES, confidence)
        self._seen[i] = self.MEMORY * self._seen[i] + 1
        self._accepted[i] = self.MEMORY * self._accepted[i] + accepted
        self._all.add(float(accepted))


class Rest:
    """Whether the draft rests, because the target is faster alone.

    Beside a draft the target may be slower than alone (they share the memory bus), so a rate that beats plain decoding
    has to be shown, not assumed. The draft reads the prompt and then rests for a few steps, in which is learned what
    the target does alone; and again whenever the two together have been slower than that. Every such rest is twice as
    long as the last, up to a limit: texts change.
    """

    FIRST_STEPS = 5
    SECOND_STEPS = 64
    LONGEST = 256  # steps
    TRIAL_STEPS = 20  # steps before the draft is judged
    MARGIN = 0.93  # share of the rate alone that the two must reach; the measured rates are that noisy

    def __init__(self) -> None:
        self._alone_s = Mean()  # time per token while the draft rests
        self._together_s = Mean(weight=1 / 32)
        self._together_tokens = Mean(weight=1 / 32)
        self._begun = False
        self._alone = False  # the first step of a rest may share the machine with the draft's last token
        self._left = self.FIRST_STEPS
        self._next_steps = self.SECOND_STEPS

    @property
    def resting(self) -> bool:
        """Whether the draft rests now."""
        return self._begun and self._left > 0

    def step(self, n_candidates: int, n_tokens: int, seconds: float) -> None:
        """The target verified `n_candidates` and wrote `n_tokens` in `seconds`."""
        self._begun = True
        if self._left:
            if not n_candidates:
                self._left -= 1
                if self._alone:
                    self._alone_s.add(seconds)
                self._alone = True
            return
        self._together_s.add(seconds)
        self._together_tokens.add(n_tokens)
        alone = self._together_tokens.value * self._alone_s.value
        if self._together_s.n >= self.TRIAL_STEPS and self.MARGIN * self._together_s.value > alone:
            self._left, self._next_steps = self._next_steps, min(2 * self._next_steps, self.LONGEST)
            self._alone = False
            self._together_s, self._together_tokens = Mean(weight=1 / 32), Mean(weight=1 / 32)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step of the target took, in seconds: the decode alone, and all with waits."""

    n_candidates: int
    decode_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Verify `n_verify` candidates now; or, if `wait_s` is not 0, wait so long for another and decide again."""

    n_verify: int
    wait_s: float = 0.0


class Policy:
    """Decides for one generation, and learns from it."""

    def __init__(self, n_max: int, n_ahead: int) -> None:
        """At most `n_max` candidates in a batch; the draft at most `n_ahead` tokens ahead."""
        self.n_max = n_max
        self.n_ahead = n_ahead
        self.costs = CostModel()
        self.calibration = Calibration()
        self.rest = Rest()
        self._tokens = Mean(weight=0.03)
        self._seconds = Mean(weight=0.03)

    @property
    def rate(self) -> float:
        """λ: tokens per second now; 0 while it is not known."""
        return self._tokens.value / self._seconds.value if self._seconds.value else 0.0

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        """What to do with ready candidates of these `confidences`.

        The text has room for `n_room` tokens. The next candidate is expected in `next_s` seconds (infinity: never).
        """
        n_max = min(self.n_max, n_room - 1)  # the target adds a token of its own to what it accepts
        rate = self.rate
        if not rate:  # nothing has been measured yet
            return Decision(min(len(confidences), n_max))
        survival, expected = 1.0, 1.0
        best, best_value = 0, 1.0 - rate * self.costs.target_s(1)
        ready = confidences[:n_max]
        for k, confidence in enumerate(ready, 1):
            survival *= self.calibration.probability(confidence)
            expected += survival
            value = expected - rate * self.costs.target_s(k + 1)
            if value > best_value:
                best, best_value = k, value
        wait_s = next_s
        for k in range(len(ready) + 1, n_max + 1):
            if wait_s == math.inf:
                break
            survival *= self.calibration.mean
            expected += survival
            if expected - rate * (wait_s + self.costs.target_s(k + 1)) > best_value:
                return Decision(0, next_s + self.costs.draft_s)
            wait_s += self.costs.draft_s
        return Decision(best)

    def may_draft(self, confidences: Sequence[float]) -> bool:
        """Whether the draft should guess on after pending candidates of these `confidences`."""
        if self.rest.resting or len(confidences) >= self.n_ahead:
            return False
        survival = math.prod(map(self.calibration.probability, confidences))
        return survival >= min(MIN_SURVIVAL, self.rate * self.costs.draft_s)

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        """The target wrote `n_tokens` at this cost."""
        self.rest.step(cost.n_candidates, n_tokens, cost.total_s)
        self.costs.add_target(cost.n_candidates + 1, cost.decode_s)
        self._tokens.add(n_tokens)
        self._seconds.add(cost.total_s)

    def learn_draft(self, seconds: float) -> None:
        """The draft made one token."""
        self.costs.add_draft(seconds)

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        """Candidates of these confidences turned out right or wrong."""
        for confidence, accepted in scores:
            self.calibration.add(confidence, accepted)
