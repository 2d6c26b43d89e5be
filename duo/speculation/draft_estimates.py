"""What is known of one draft, and the rate that it promises in each schedule."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypedDict

from duo.config import DraftConfig
from duo.speculation.acceptance import Acceptance, AcceptanceState, Lookahead
from duo.speculation.constants import DEFAULT
from duo.speculation.draft_costs import CostState, DraftCosts
from duo.speculation.estimators import Mean, between
from duo.speculation.forecast import SURE, Forecast, in_blocks, limit, overlapped, taking_turns
from duo.speculation.modes import ALL, ASYNC, OFF, SYNC, Schedule, schedules_of
from duo.speculation.target_costs import BatchTimes, BatchTimesState, TargetCosts
from duo.speculation.types import Candidate

# Smallest factor by which a forecast is corrected: the times that a remote draft reports may be false.
_MIN_BIAS, _MIN_BIAS_REMOTE = 0.5, 0.02
_MAX_BIAS = 2.0
HALF = math.sqrt(0.5)  # standard deviations of costs and of acceptance, which together are about one
_NUMBERS = (0, 1, 2, 4, 8)  # of prepared outcomes that are compared


class DraftState(TypedDict):
    """What a profile keeps of a draft: JSON types, each value of which is checked when it is restored."""

    costs: CostState
    beside: BatchTimesState  # T(n) while the draft computes
    acceptance: dict[str, AcceptanceState]  # by mode of sampling
    bias: dict[str, float]  # by schedule
    # Texts in succession whose first probe did not lead to drafting, and tokens since a candidate was scored.
    probes: list[int]


@dataclass(eq=False)
class DraftEstimates:
    """The limits of one draft, its costs, and how often its candidates are accepted.

    The draft's proposer adds what it measures; the controller sets what the draft shall do: `schedule` and `forecast`.
    """

    target: TargetCosts
    n_max: int  # candidates in a batch
    n_ahead: int  # drafted tokens awaiting verification
    schedules: Sequence[Schedule] = ALL  # to choose among
    draft_threads: Sequence[int] = (1,)  # to choose among, for schedule sync
    _: KW_ONLY
    name: str = "draft"
    remote: bool = False  # the draft is on another machine: no schedule sync; see learn_sequences()
    separate_devices: bool = False  # the draft costs the target nothing while both compute: async is the first schedule
    branches: int | None = 0  # outcomes that the draft prepares in schedule async; None: as many as pay
    aborts: bool = True  # whether the draft's device can abort a decode whose result is no longer wanted
    in_turns: bool = False  # the draft is a head on the target's device: no schedule async
    n_depths: int = 1  # of a head's candidates: see Acceptance
    block: int = 0  # most candidates of a block draft, which makes them in one decode; 0: it is none

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        if self.remote:
            self.separate_devices = True
            self.schedules = tuple(each for each in self.schedules if each is not SYNC) or (ASYNC,)
        if self.in_turns:
            self.schedules = tuple(each for each in self.schedules if each is not ASYNC) or (SYNC,)
        self.costs = DraftCosts(is_apart=self.separate_devices)
        self.acceptance = Acceptance(self.n_depths)  # in this mode of sampling
        self._acceptances = {"": self.acceptance}  # in all modes
        self.bias = {schedule: Mean(value=1.0, n=4) for schedule in (SYNC, ASYNC)}
        self.n_fruitless = 0  # texts in succession whose first probe did not lead to drafting
        self.n_unscored = 0  # tokens since a candidate was last scored, those of earlier texts included
        self.can_prepare = not self.remote  # whether the draft can prepare outcomes
        self.n_branches = 0  # outcomes to prepare now, in schedule async
        self._compared: list[int] = []  # what this number was chosen for
        self._near: dict[int, Sequence[int]] = {}  # by number of branches: of the last forecast of schedule async
        self.begin("", 0)

    def begin(self, sampling: str, n_prompt: int) -> None:
        """A text begins, in this mode of sampling, after `n_prompt` tokens that are new to the draft."""
        self.acceptance = self._acceptances.setdefault(sampling, Acceptance(self.n_depths))
        self.acceptance.begin()
        self.mode = sampling
        self.schedule, self.forecast = OFF, Forecast(0.0)  # of the draft, as the controller has decided
        self.n_prompt = self.n_unread = n_prompt  # tokens of the text that the draft has not decoded
        self.n_unread_found = 0  # of these, tokens that the lookup has found
        self.is_worthwhile = self.schedules != (OFF,)  # whether a better draft would pay
        self.may_gain = True  # whether drafting may pay, by what is known
        self.was_probed = False
        self.worth = math.inf  # what knowing the draft better may gain in this text, in tokens' time
        self.was_scored = self.scored = False  # whether a candidate was scored in this text, and in this step
        self.n_probe = 0  # tokens that the idle draft shall decode, to see which it would have drafted
        self.is_chosen = False  # whether the controller wants to use the draft
        self.reads_prompt = True  # whether a head should read the prompt right after the target
        self.has_ended = False  # whether the draft cannot go on in this text

    @property
    def beside(self) -> BatchTimes:
        """T(n) while the draft computes."""
        return self.target.beside(self.name, is_apart=self.separate_devices)

    # What the proposer measures

    def learn_draft(self, n_tokens: int, seconds: float, n_sequences: int = 1) -> None:
        """The draft made a token, for which it decoded `n_tokens` at once, or one in each of `n_sequences`."""
        self.n_unread = self.n_unread_found = 0
        alone, concurrent = self.costs.alone, self.costs.concurrent
        if self.target.is_jump(seconds / max(1, n_tokens)) or (self.target.is_disturbed and alone.token_s):
            return
        if 0 < n_tokens <= self.block:
            alone.add(seconds, self.n_threads, n_tokens)
        elif n_sequences > 1:
            (concurrent if self.schedule is ASYNC else alone).add(seconds, n_sequences=n_sequences)
        elif n_tokens == 1 and self.schedule is ASYNC:
            concurrent.add(seconds)
        elif n_tokens == 1:
            alone.add(seconds, self.n_threads)
        elif n_tokens == 2 and self.schedule is SYNC:
            alone.add_pair(seconds)
        else:
            self.costs.add_read(n_tokens, seconds)

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        """Candidates of these confidences would have been accepted or not."""
        for confidence, accepted in scores:
            self.acceptance.add(confidence, accepted)
            self.scored = self.was_scored = True

    def learn_warmup(self, n_threads: int, seconds: float) -> None:
        """The draft decoded one token with `n_threads` while it was loaded."""
        if not self.costs.knows(n_threads):
            self.costs.alone.add(seconds, n_threads)

    def learn_branches(self, n_sequences: int, ratio: float) -> None:
        """While it was loaded, a token in each of `n_sequences` took the draft `ratio` times as long as one token."""
        if (one_s := self.costs.alone.token_s) and not self.costs.knows(1, n_sequences):
            self.costs.alone.add(ratio * one_s, n_sequences=n_sequences)

    def learn_sequences(self, seconds: Mapping[int, float]) -> None:
        """A remote draft that can prepare outcomes takes so long for a token in each of 1, 2, … sequences.

        This replaces what is known from other devices with a draft of this name.
        """
        if 1 in seconds and len(seconds) > 1:
            self.can_prepare = True
            self.costs.replace(seconds)

    def step(self, n_tokens: int, n_own: int, n_found: int) -> None:
        """The text has `n_tokens` more, `n_found` by the lookup; the draft is judged on `n_own` of them."""
        self.n_unread += n_tokens
        self.n_unread_found += n_found
        self.n_unscored = 0 if self.scored else self.n_unscored + n_own
        self.scored = False

    # What the draft shall do

    @property
    def n_threads(self) -> int:
        """Threads for the draft in schedule sync: as many as may be the fastest (Auer et al. 2002)."""
        times = self.costs.alone.by_threads
        return min(self.draft_threads, key=lambda n: times[n].estimate(-1.0) if n in times else 0.0)

    @property
    def token_s(self) -> float:
        """t_d in the present schedule."""
        return (self.costs.concurrent if self.schedule is ASYNC else self.costs.alone).token_s

    @property
    def restart_s(self) -> float:
        """From a rejection until the draft begins anew: the round trip, and half of a decode that it cannot abort."""
        return self.costs.latency_s + (0.0 if self.aborts else self.costs.concurrent.token_s / 2)

    @property
    def next_s(self) -> float:
        """Seconds for the next token in schedule sync, for which it reads what the lookup has found; of a block."""
        return self.costs.alone.seconds(0.0, self.n_block) + self.n_unread_found * self.costs.read_s

    @property
    def n_block(self) -> int:
        """Candidates to make at once now."""
        return min(max(1, self.forecast.n_wait), self.block or 1)

    def chances(self, candidates: Sequence[Candidate]) -> list[float]:
        """a(c) of each candidate, adjusted to this text."""
        return self.acceptance.now([each.confidence for each in candidates])

    def lookahead(self) -> Lookahead:
        """How far the draft may run ahead, given what is known now."""
        if self.schedule is not ASYNC:
            return Lookahead()
        least = min(DEFAULT.share, self.forecast.rate * self.costs.concurrent.token_s)
        return Lookahead(self.n_ahead, least, self.acceptance.probabilities(), self.n_branches, self.acceptance.ranks)

    # What the draft promises

    def forecasts(
        self, n_found: float = 0.0, acceptance: float | None = None, doubt: float = 0.0, *, constant: bool = False
    ) -> dict[Schedule, Forecast]:
        """What each schedule can reach, at the mean `acceptance` unless it is given; empty while costs are unknown.

        `n_found`: tokens that the lookup finds between two other steps, which the draft has to read. `constant`: the
        draft's confidence says nothing about a candidate.
        """
        target, alone = self.target.alone, self.costs.alone
        if not target.seconds(1) or not (self.costs.concurrent.token_s and self.beside.seconds(1)):
            return {}
        acceptance = self.acceptance.mean if acceptance is None else acceptance
        chances = [[(1.0, acceptance)]] if constant else self.acceptance.by_depth(acceptance)
        curve, draft_s = target.curve(self.n_max + 1, doubt), alone.seconds(doubt)
        round_s, pair_s = self.costs.latency_s + n_found * self.costs.read_s, alone.pair_s(doubt)
        found = dict[Schedule, Forecast]()
        if self.block:
            block_s = [alone.seconds(doubt, n) for n in range(1, self.block + 1)]
            found[SYNC] = in_blocks(curve, block_s, chances, round_s)
        elif not self.remote:
            if self.n_depths > 1:  # a head reads again what was accepted
                round_s, pair_s = round_s + pair_s - draft_s, draft_s
            found[SYNC] = taking_turns(curve, draft_s, chances, pair_s, round_s)
        if self.n_depths > 1:  # running ahead, it mostly builds on rows of its own
            deep = chances[1:] or chances
            acceptance = math.prod(sum(map(math.prod, group)) for group in deep) ** (1 / len(deep))
        if not self.in_turns:
            found[ASYNC] = self._overlapped(acceptance, doubt, self.n_branches)
        return found

    def _overlapped(self, acceptance: float, doubt: float, n_branches: int) -> Forecast:
        target_s, times = self.beside.curve(self.n_max + 1, doubt), self.costs.concurrent
        draft_s = [times.seconds(doubt, n) for n in range(1, n_branches + 2)]
        link_s = self.costs.latency_s
        latency_s = link_s if self.aborts else link_s + draft_s[-1] / 2
        ranks, near = self.acceptance.ranks, self._near.get(n_branches, ())
        found = overlapped(target_s, draft_s, acceptance, self.n_ahead, latency_s, ranks, near, link_s)
        self._near[n_branches] = found.batches
        return found

    def limit(self, acceptance: float) -> float:
        """The rate in tokens/s that no schedule exceeds; infinite while the target's times are unknown."""
        found, sizes, n = [], range(1, self.block + 1), min(self.n_max, self.block or self.n_max)
        for target, own in ((self.target.alone, self.costs.alone), (self.beside, self.costs.concurrent)):
            # After a block, the target adds a token of its own, which any other draft has to read.
            token_s = min((own.seconds(0.0, size) / (size + 1) for size in sizes), default=own.token_s)
            if target.seconds(1):
                found.append(limit(target.curve(n + 1), token_s or math.inf, acceptance))
        return max(found, default=math.inf)

    def choose_branches(self, *, allowed: bool, must_pay: bool = False) -> None:
        """Choose the fewest branches that are almost the best; again only after a change of about a tenth.

        `must_pay`: none where the target alone is faster than the limit of schedule async. The target waits meanwhile.
        """
        times, curve = self.costs.concurrent, self.beside.curve(self.n_max + 1)
        allowed = allowed and self.can_prepare
        if not allowed or self.branches is not None or not (times.token_s and curve[0]):
            self.n_branches, self._compared = self.branches or 0 if allowed else 0, []
            return
        if must_pay and OFF in self.schedules and self.schedule is not ASYNC:
            most = limit(curve, times.token_s, self.acceptance.mean)
            if most * self.target.alone.seconds(1) < 1:
                self.n_branches, self._compared = 0, []
                return
        acceptance, logs = self.acceptance.mean, [curve[0], curve[-1], *(times.seconds(0.0, n + 1) for n in _NUMBERS)]
        found = [round(10 * value) for value in (acceptance, *self.acceptance.ranks, *map(math.log, logs))]
        if found == self._compared:
            return
        self._compared = found
        rates = {n: self._overlapped(acceptance, 0.0, n).rate for n in _NUMBERS}
        least, best = DEFAULT.least_gain, max(rates.values())
        pays = best >= (1 + least) * rates[0]
        self.n_branches = next(n for n in _NUMBERS if rates[n] >= (1 - least / 4) * best) if pays else 0

    def range(self, n_found: float = 0.0) -> tuple[dict[Schedule, Forecast], dict[Schedule, Forecast]]:
        """The forecasts if all that is uncertain is one standard deviation worse, and better."""
        mean, sd = self.acceptance.mean, HALF * self.acceptance.sd
        low = self.forecasts(n_found, max(0.0, mean - sd), HALF)
        return low, self.forecasts(n_found, min(SURE, mean + sd), -HALF)

    def learn_bias(self, schedule: Schedule, ratio: float) -> None:
        """The measured rate was `ratio` times the forecast."""
        self.bias[schedule].add(self._limited(ratio))

    def _limited(self, bias: float) -> float:
        return min(max(bias, _MIN_BIAS_REMOTE if self.remote else _MIN_BIAS), _MAX_BIAS)

    # What is kept

    def state(self) -> DraftState:
        """What was learned, as JSON types."""
        return {
            "costs": self.costs.state(),
            "beside": self.target.times(self.name),
            "acceptance": {mode: found.state() for mode, found in self._acceptances.items() if mode and found.n_scored},
            "bias": {schedule.value: bias.value for schedule, bias in self.bias.items()},
            "probes": [self.n_fruitless, self.n_unscored],
        }

    def restore(self, state: DraftState) -> bool:
        """Start from the state() of an earlier run. False, and nothing is restored, if it is damaged."""
        try:
            replace(self, target=TargetCosts())._restore(state)
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self._restore(state)
        return True

    def _restore(self, state: DraftState) -> None:
        self.costs.restore(state["costs"])
        self.beside  # noqa: B018 - makes the condition, if it shares no device with the target
        self.target.restore_times(state["beside"], self.name)
        for mode, scores in state["acceptance"].items():
            self._acceptances[mode] = Acceptance(self.n_depths)
            self._acceptances[mode].restore(scores)
        for schedule in self.bias:
            bias = between(state["bias"][schedule.value], 0, 1e9)
            self.bias[schedule] = Mean(value=self._limited(bias), n=4)
        self.n_fruitless, self.n_unscored = (int(between(n, 0, 1e9)) for n in state["probes"])
        self.acceptance = self._acceptances.get(self.mode, self.acceptance)


def estimates_for(
    target: TargetCosts, drafting: DraftConfig, draft_threads: Sequence[int] = (1,), **options: Any
) -> DraftEstimates:
    """The estimates of a draft with the limits that a user has set for `drafting`; `options`: see DraftEstimates."""
    limits, schedules = (drafting.n_max, drafting.n_ahead), schedules_of(drafting)
    return DraftEstimates(target, *limits, schedules, draft_threads, branches=drafting.branches, **options)
