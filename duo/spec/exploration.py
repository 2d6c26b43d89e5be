"""Exploration: what is measured on purpose, because it decides whether drafting pays.

While the draft is idle, some decodes carry arbitrary candidates, so that T(n) is measured, and the draft is *probed*:
scored on what the target has written. In schedule sync T(1) is measured. All of this is paid from the budget.
"""

from __future__ import annotations

from duo.spec.constants import DEFAULT
from duo.spec.pair import PairModel
from duo.spec.schedule import Chooser, Schedule


class Exploration:
    """What is worth measuring in a text, given what is known about the pair."""

    def __init__(self, pair: PairModel, chooser: Chooser, *, probes: bool) -> None:
        """`probes`: whether the draft can be probed."""
        self._pair = pair
        self._chooser = chooser
        self._probes = probes
        self.may_gain = True  # whether drafting may pay, by what is known
        self._since_alone = 0  # tokens since T(1) was measured
        self.begin(0, is_possible=False)

    def begin(self, n_prompt: int, *, is_possible: bool) -> None:
        """A text of `n_prompt` tokens begins. `is_possible`: whether there is a schedule with the draft."""
        self.is_worthwhile = is_possible  # whether a better draft would pay, and there is one
        self.n_written = 0  # tokens after the prompt
        self._n_prompt = self.n_unread = n_prompt  # tokens of the text that the draft has not decoded
        self._n_unscored = 0  # tokens since a candidate was last scored
        self._size = 0  # of batches to measure
        self._was_probed = False

    def end(self) -> None:
        """The draft is not available for the rest of the text."""
        self.is_worthwhile, self._size = False, 0

    def step(self, n_tokens: int, *, scored: bool, is_alone: bool) -> None:
        """The target has added `n_tokens`. `is_alone`: by a decode of one token, with the draft idle."""
        self.n_written += n_tokens
        self.n_unread += n_tokens
        self._n_unscored = 0 if scored else self._n_unscored + n_tokens
        self._since_alone = 0 if is_alone else self._since_alone + n_tokens

    # T(n)

    def needs_alone(self, rate: float) -> bool:
        """Whether to measure T(1) in schedule sync, whose gain rests on it: the less that is, the more often."""
        alone = self._pair.alone
        gain = max(1 + DEFAULT.least_gain, rate * alone.target_s(1))
        is_due = 1 - 1 / gain <= DEFAULT.alone_share * self._since_alone
        return alone.is_doubted or (is_due and Schedule.OFF in self._chooser.allowed)

    def plan(self, schedule: Schedule) -> None:
        """Choose the size to measure: a typical one, or a small one, which shows whether an earlier run's hold."""
        (first, second), alone = DEFAULT.sizes, self._pair.alone
        known = alone.target(first)
        # A single measurement is repeated: something may have interrupted it.
        is_unsure = known.n == 1 and known.is_fresh
        size = second if known.n and not is_unsure else first
        is_wanted = is_unsure or (self.is_worthwhile and not alone.target(size).is_fresh)
        self._size = size if is_wanted and schedule is Schedule.OFF else 0

    @property
    def is_due(self) -> bool:
        """Whether a size that was never measured is to be measured before a schedule is chosen."""
        alone = self._pair.alone
        is_new = self._size > 0 and not alone.target(self._size).n
        return is_new and (alone.target(1).n < DEFAULT.first_alone or self.n_candidates(self._pair.n_max) > 0)

    def n_candidates(self, n_max: int) -> int:
        """How many arbitrary candidates to verify now, because T(n) decides whether drafting pays; usually 0.

        Only in schedule off.
        """
        alone, cheap = self._pair.alone, DEFAULT.sizes[1]
        one = alone.target(1)
        if not self._size or not one.is_fresh or one.n < DEFAULT.first_alone:
            return 0
        for n in (self._size, cheap):
            if n == self._size or not alone.target(n).is_fresh:
                cost_s = alone.target_s(n, 0.0 if alone.target(n).n else 1.0) - alone.target_s(1)
                if n <= n_max + 1 and cost_s <= self._chooser.budget.credit_s:
                    return n - 1
        return 0

    # Probes

    def probe_size(self) -> int:
        """How many tokens of the text an idle draft should decode to see which it would have drafted; usually 0.

        That is all that it has not decoded, or the last ones.
        """
        alone_s = self._pair.alone.target_s(1)
        if not (self._probes and self.is_worthwhile and alone_s and Schedule.OFF in self._chooser.allowed):
            return 0
        silence = DEFAULT.silence if self.may_gain or not self._was_probed else DEFAULT.long_silence
        least = DEFAULT.probe_tokens // 2
        if self._n_unscored < silence or self.n_written < least:
            return 0
        n_affordable = int(self._chooser.budget.credit_s / (self._pair.read_s or DEFAULT.read * alone_s))
        n = self.n_unread if n_affordable >= self.n_unread else min(DEFAULT.probe_tokens, n_affordable)
        return n if n >= least else 0

    def probed(self, n_tokens: int, seconds: float, *, whole: bool) -> None:
        """A probe has decoded `n_tokens` in `seconds`; `whole`: all of the text."""
        self._was_probed = True
        if n_tokens:
            self.n_unread = 0 if whole else self._n_prompt + self.n_written
        self._n_unscored = 0
        self._chooser.budget.spend(seconds)
