"""Trials: what is measured on purpose, because a decision depends on it. The budget of the modes pays for it."""

import math
from collections.abc import Sequence

from duo.speculation.constants import DEFAULT
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.estimators import Time
from duo.speculation.modes import ALONE, ASYNC, Chooser
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import Candidate, Origin, Plan, Planned, Probe, Proposal


class Trials:
    """While no draft computes, some decodes carry arbitrary candidates to measure T(n), and drafts are probed.

    A *probe* scores a draft on what the target has written. In schedule sync T(1) is measured. While other programs
    take cores from the target, no times are learned, except in schedule async, and none are measured on purpose.
    """

    def __init__(self, target: TargetCosts, chooser: Chooser) -> None:
        self._target, self._chooser = target, chooser
        self._size = 0  # of batches to measure
        self._since_alone = 0  # tokens since T(1) was measured

    def begin(self) -> None:
        """A text begins."""
        self._size = 0

    def learn(self, n_tokens: int, *, is_alone: bool) -> None:
        """A step added `n_tokens`; `is_alone`: it has measured T(1)."""
        self._since_alone = 0 if is_alone else self._since_alone + n_tokens

    def needs_alone(self, rate: float) -> bool:
        """Whether to measure T(1) in schedule sync, whose gain rests on it: the less that is, the more often."""
        alone = self._target.alone
        gain = max(1 + DEFAULT.least_gain, rate * alone.seconds(1))
        is_due = 1 - 1 / gain <= DEFAULT.time_share * self._since_alone or alone.is_odd
        return not self._target.is_disturbed and (alone.is_doubted or (is_due and ALONE in self._chooser.allowed))

    def choose_size(self, n_max: int, *, is_worthwhile: bool, is_alone: bool) -> bool:
        """Choose the size to measure. Returns whether it is new, and to be measured before a mode is chosen."""
        (first, second), alone = DEFAULT.sizes, self._target.alone
        known = alone.time(first)
        # A single measurement is repeated: something may have interrupted it.
        is_unsure = known.n == 1 and known.is_fresh
        size = second if known.n and not is_unsure else first
        is_wanted = alone.rests_on_kept and (is_unsure or (is_worthwhile and not alone.time(size).is_fresh))
        self._size = size if is_wanted and is_alone else 0
        is_new = self._size > 0 and not alone.time(self._size).n
        return is_new and (alone.time(1).n < Time.FIRST or self.n_arbitrary(n_max) > 0)

    def n_arbitrary(self, n_max: int) -> int:
        """How many arbitrary candidates to verify now in schedule off, to measure T(n); usually 0."""
        alone, cheap = self._target.alone, DEFAULT.sizes[1]
        one = alone.time(1)
        if not self._size or not one.is_fresh or one.n < Time.FIRST or self._target.is_disturbed:
            return 0
        for n in (self._size, cheap):
            if n == self._size or not alone.time(n).is_fresh:
                cost_s = alone.seconds(n, 0.0 if alone.time(n).n else 1.0) - alone.seconds(1)
                if n <= n_max + 1 and cost_s <= self._chooser.budget.credit_s:
                    return n - 1
        return 0

    def probe_size(self, draft: DraftEstimates) -> int:
        """How many of the last tokens an idle draft should decode to see which it would have drafted; usually 0."""
        is_other = self._chooser.now.draft not in ("", draft.name)  # while another draft is used, once in a text
        if min(draft.n_unscored, self._chooser.n_tokens) < DEFAULT.some or (is_other and draft.was_probed):
            return 0
        budget, alone_s, silence = self._chooser.budget, self._target.alone.seconds(1), DEFAULT.some
        if draft.remote or not (draft.is_worthwhile and ALONE in self._chooser.allowed and alone_s):
            return 0
        if draft.n_fruitless >= DEFAULT.few or (draft.was_probed and not draft.may_gain):
            silence = DEFAULT.horizon // 2 * max(1, draft.n_fruitless - DEFAULT.few)
        if self._chooser.now.schedule is ASYNC or draft.n_unscored < silence:
            return 0
        each_s = draft.costs.read_s or DEFAULT.read * alone_s
        n, unread_s = min(DEFAULT.probe_tokens, int(budget.credit_s / each_s)), draft.n_unread * each_s
        if draft.n_depths > 1 and unread_s > max(0.0, budget.credit_s):
            return 0  # a head reads all that is new
        # What is known from earlier runs, or from long ago, may be wrong: it is checked at the price of the budget.
        is_old = not budget.is_first or self._target.alone.rests_on_kept or draft.n_unscored >= DEFAULT.horizon
        is_checked = is_other or is_old
        most_s = math.inf if is_checked else draft.worth * alone_s
        most_s = most_s if budget.is_first else min(most_s, DEFAULT.share * budget.elapsed_s)
        if n < DEFAULT.probe_tokens // 2 or n * each_s > most_s:
            return 0
        return max(n, draft.n_unread) if unread_s <= budget.credit_s else n

    def learn_probe(self, draft: DraftEstimates, probe: Probe) -> bool:
        """A draft was scored on what the target has written. Returns whether it is much better than was known.

        A draft that has not decoded all of the text knew too little of it to be right as often as it will be.
        """
        scores, n_tokens, seconds, whole = probe
        if n_tokens and self._target.is_jump(seconds / n_tokens):
            seconds = 0.0
        is_better, n = False, len(scores)
        if n:
            share = sum(accepted for _, accepted in scores) / n
            if not whole:
                share = min(share / DEFAULT.without_context, DEFAULT.excellent)
            is_better = draft.acceptance.doubt(share, n)
            if whole:
                draft.learn_scores(scores)
            else:
                draft.acceptance.add_share(share, n)
        alone = draft.costs.alone
        learns = seconds > 0 and not (self._target.is_disturbed and alone.token_s)
        if learns and draft.block:
            alone.inferred_s = alone.inferred_s or seconds / max(1, n)
        elif learns:
            draft.costs.add_read(n_tokens, seconds)
            alone.inferred_s = alone.inferred_s or draft.costs.read_s / DEFAULT.read
        draft.n_unscored = draft.n_probe = 0
        if n_tokens:
            draft.n_unread = 0 if whole else draft.n_prompt + self._chooser.n_tokens
        self._chooser.budget.spend(seconds)
        return is_better


def arbitrary(n: int, text: Planned, proposals: Sequence[Proposal]) -> Plan:
    """A plan that verifies `n` candidates, whatever they are: those of a proposer, or copies of the last token."""
    for i, each in enumerate(proposals):
        if len(each.candidates) >= n:
            return Plan(each.candidates[:n], i, each.origin)
    return Plan(n * (Candidate(text.tokens[-1], 0.0),), origin=Origin.ANY)
