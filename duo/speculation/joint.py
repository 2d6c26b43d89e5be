"""Joint decodes, of several texts at once: what they cost, and which candidates of which text they verify.

Candidates of all texts compete: in the order of their survival, as many are taken as maximise tokens - λ · T(n), as in
decision.py, n being all rows. T is measured apart from that of one text, of which what was not measured is taken.
A draft in turns makes one more candidate for each of the likeliest texts while that is worth λ times what it takes.
"""

import math
from collections.abc import Mapping, Sequence

from duo.speculation.constants import DEFAULT
from duo.speculation.estimators import Mean, Time
from duo.speculation.modes import Budget
from duo.speculation.target_costs import TargetCosts, interpolated, with_inferred
from duo.speculation.types import Proposal

_LEAST = 4  # tokens of a piece
_SHARE = 1 / 8  # of a decode, that a prompt's token adds until it is measured


class JointDecodes:
    """What is known of the joint decodes of one target."""

    def __init__(self, target: TargetCosts) -> None:
        """`target`: what is known of its decodes of one text."""
        self._target = target
        self._times: dict[int, Time] = {}  # by rows
        self._added = Mean(weight=0.2)  # seconds that a prompt's token adds to a decode
        self._budget = Budget(DEFAULT.later, DEFAULT.later)  # for candidates that do not pay
        self._recent = (0.0, 0.0)  # tokens and seconds, the latest decodes counting most

    def begin(self) -> None:
        """Other texts are written together from now on."""
        self._budget.begin(None)
        self._recent = (0.0, 0.0)

    def curve(self, n: int) -> list[float]:
        """T(1) to T(n) in seconds; zeros while nothing is known."""
        known = with_inferred(_without_outliers(self._times), _without_outliers(self._target.alone.times))
        if not known:
            return [0.0] * n
        several = [size for size in known if size > 1]
        least, most = min(several, default=1), max(known)
        if least < most < n:
            known[n] = known[most] + (n - most) * max(0.0, known[most] - known[least]) / (most - least)
        return interpolated(known, n)[:n]

    def plan(self, proposals: Sequence[Proposal], rooms: Sequence[int], n_most: int) -> list[int]:
        """How many candidates of each text to verify: a number per text, at most `n_most` in all."""
        n_texts, counts = len(proposals), [0] * len(proposals)
        doubt, found = float(self._budget.credit_s < 0), list[tuple[float, int, int]]()
        for i, (proposal, room) in enumerate(zip(proposals, rooms, strict=True)):
            survival = 1.0
            for k, (chance, seen) in enumerate(proposal.chances[:room]):
                survival *= max(0.0, chance - doubt * math.sqrt(chance * (1 - chance) / seen))
                found.append((-survival, k, i))
        if not found or not (curve := self.curve(n_texts + n_most))[0]:
            return counts
        found.sort()
        rate = self._rate(n_texts, curve)
        best, best_value, expected = 0, n_texts - rate * curve[n_texts - 1], float(n_texts)
        for n, (survival, _, _) in enumerate(found[:n_most], 1):
            expected -= survival
            if (value := expected - rate * curve[n_texts + n - 1]) > best_value:
                best, best_value = n, value
        for _, _, i in found[:best]:
            counts[i] += 1
        return counts

    def _rate(self, n_texts: int, curve: Sequence[float]) -> float:
        """λ in tokens/s."""
        tokens, seconds = self._recent
        return max(n_texts / curve[n_texts - 1], tokens / seconds if seconds else 0.0)

    def drafting(
        self, n_texts: int, n_rows: int, chances: Sequence[tuple[float, float]], step_s: Sequence[tuple[float, float]],
        n_most: int, depth_most: int,
    ) -> tuple[int, int, float]:  # fmt: skip
        """For how many of some texts a draft shall make further candidates: for the first ones, or none.

        `n_rows` are taken already, and `n_most` have room. `chances`: that the candidates of a text are right so far,
        and that each further one is if they are, likeliest first. `step_s`: seconds of the next step of the draft for
        so many texts, and of each later one. Also how many each would get, at most `depth_most`, and the seconds saved.
        """
        if not chances or n_most < 1 or not step_s[0][0] or not (curve := self.curve(n_rows + n_most))[0]:
            return 0, 0, 0.0
        rate, worth, survival = self._rate(n_texts, curve), [0.0] * len(chances), [so_far for so_far, _ in chances]
        best, best_value = (0, 0), 0.0
        for depth in range(1, depth_most + 1):
            added = 0.0  # tokens
            for i, (_, chance) in enumerate(chances[: n_most // depth]):
                survival[i] *= chance
                added += survival[i]
                worth[i] += added
                first_s, later_s = step_s[i]
                decode_s = curve[n_rows + (i + 1) * depth - 1] - curve[n_rows - 1]
                if (value := worth[i] - rate * (first_s + (depth - 1) * later_s + decode_s)) > best_value:
                    best, best_value = (i + 1, depth), value
        return (*best, best_value / rate)

    def n_beside(self, n_rows: int) -> int:
        """Tokens of a prompt in a decode of `n_rows` others, which may then take twice as long as without them."""
        seconds = self.curve(n_rows)[-1]
        added_s = self._added.value or _SHARE * seconds
        return max(_LEAST, int(seconds / added_s)) if added_s else _LEAST

    def learn(
        self, n_texts: int, n_rows: int, n_read: int, n_tokens: int, seconds: float, drafted_s: float = 0.0
    ) -> None:
        """A decode of `n_rows` and `n_read` tokens of a prompt, after the draft, added `n_tokens` to `n_texts`."""
        if n_read:
            least_s = self.curve(max(2, n_rows))[-1]  # one row may take far less than two
            self._added.add(max(seconds - least_s, seconds / 10) / n_read)
            return
        self._times.setdefault(n_rows, Time()).add(seconds)
        seconds += drafted_s
        kept = DEFAULT.memory**n_tokens
        self._recent = (kept * self._recent[0] + n_tokens, kept * self._recent[1] + seconds)
        alone_s = self.curve(n_texts)[-1] / n_texts
        gained_s = n_tokens * alone_s - seconds if n_rows > n_texts or drafted_s else 0.0
        self._budget.step(seconds, gained_s, alone_s)


def _without_outliers(times: Mapping[int, Time]) -> dict[int, float]:
    """Seconds by rows; of what was measured once and took far too long, what the other sizes say.

    Otherwise a size during which something else computed would not be tried again.
    """
    known = {n: time.value for n, time in times.items()}
    for n in [n for n, time in times.items() if time.n < Time.FIRST and n > 1 and len(times) > 1]:
        others = interpolated({other: seconds for other, seconds in known.items() if other != n}, n)
        if known[n] > DEFAULT.max_slower * others[n - 1]:
            known[n] = others[n - 1]
    return known
