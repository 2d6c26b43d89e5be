"""Explorer: what is measured on purpose, because it decides whether drafting pays.

While the draft is idle, some decodes carry arbitrary candidates, so that T(n) is measured, and the draft is *probed*:
scored on what the target has written. In schedule sync T(1) is measured. All of this is paid from the budget.
"""

from __future__ import annotations

from duo.spec.constants import DEFAULT
from duo.spec.pair import PairModel
from duo.spec.schedule import Chooser, Schedule


class Explorer(PairModel):
    """Knows what is worth measuring in a text, given what is known about the pair."""

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        super().__post_init__()
        self.chooser = Chooser(self.schedules, Schedule.ASYNC if self.separate_devices else Schedule.OFF)
        self._may_gain = True  # whether drafting may pay, by what is known
        self._since_alone = 0  # tokens since T(1) was measured
        self._begin_exploring(0)

    @property
    def schedule(self) -> Schedule:
        """The schedule to follow now.

        With a remote draft the target is first measured alone: the "other" machine may be this one.
        """
        if self.remote and Schedule.OFF in self.chooser.allowed and self.alone.target(1).n < DEFAULT.first_alone:
            return Schedule.OFF
        return self.chooser.now

    def _begin_exploring(self, n_prompt: int) -> None:
        """A text of `n_prompt` tokens begins."""
        self._is_worthwhile = self.schedules != (Schedule.OFF,)  # whether a better draft would pay, and there is one
        self._n_written = 0  # tokens after the prompt
        self._n_prompt = self._n_unread = n_prompt  # tokens of the text that the draft has not decoded
        self._n_unscored = 0  # tokens since a candidate was last scored
        self._size = 0  # of batches to measure
        self._was_probed = False

    def _count(self, n_tokens: int, *, scored: bool, is_alone: bool) -> None:
        """The target has added `n_tokens`. `is_alone`: by a decode of one token, with the draft idle."""
        self._n_written += n_tokens
        self._n_unread += n_tokens
        self._n_unscored = 0 if scored else self._n_unscored + n_tokens
        self._since_alone = 0 if is_alone else self._since_alone + n_tokens

    def _needs_alone(self, rate: float) -> bool:
        """Whether to measure T(1) in schedule sync, whose gain rests on it: the less that is, the more often."""
        gain = max(1 + DEFAULT.least_gain, rate * self.alone.target_s(1))
        is_due = 1 - 1 / gain <= DEFAULT.alone_share * self._since_alone
        return self.alone.is_doubted or (is_due and Schedule.OFF in self.chooser.allowed)

    def _plan(self) -> bool:
        """Choose the size to measure: a typical one, or a small one, which shows whether an earlier run's hold.

        Returns whether it was never measured, and is to be measured before a schedule is chosen.
        """
        (first, second), alone = DEFAULT.sizes, self.alone
        known = alone.target(first)
        # A single measurement is repeated: something may have interrupted it.
        is_unsure = known.n == 1 and known.is_fresh
        size = second if known.n and not is_unsure else first
        is_wanted = is_unsure or (self._is_worthwhile and not alone.target(size).is_fresh)
        self._size = size if is_wanted and self.schedule is Schedule.OFF else 0
        is_new = self._size > 0 and not alone.target(self._size).n
        return is_new and (alone.target(1).n < DEFAULT.first_alone or self._n_arbitrary(self.n_max) > 0)

    def _n_arbitrary(self, n_max: int) -> int:
        """How many arbitrary candidates to verify now in schedule off, to measure T(n); usually 0."""
        alone, cheap = self.alone, DEFAULT.sizes[1]
        one = alone.target(1)
        if not self._size or not one.is_fresh or one.n < DEFAULT.first_alone:
            return 0
        for n in (self._size, cheap):
            if n == self._size or not alone.target(n).is_fresh:
                cost_s = alone.target_s(n, 0.0 if alone.target(n).n else 1.0) - alone.target_s(1)
                if n <= n_max + 1 and cost_s <= self.chooser.budget.credit_s:
                    return n - 1
        return 0

    def probe_size(self) -> int:
        """How many tokens of the text an idle draft should decode to see which it would have drafted; usually 0.

        That is all that it has not decoded, or the last ones.
        """
        if self.schedule is Schedule.ASYNC or not (alone_s := self.alone.target_s(1)):
            return 0
        if self.remote or not self._is_worthwhile or Schedule.OFF not in self.chooser.allowed:
            return 0
        silence = DEFAULT.silence if self._may_gain or not self._was_probed else DEFAULT.long_silence
        least = DEFAULT.probe_tokens // 2
        if self._n_unscored < silence or self._n_written < least:
            return 0
        n_affordable = int(self.chooser.budget.credit_s / (self.read_s or DEFAULT.read * alone_s))
        n = self._n_unread if n_affordable >= self._n_unread else min(DEFAULT.probe_tokens, n_affordable)
        return n if n >= least else 0
