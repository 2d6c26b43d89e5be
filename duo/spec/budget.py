"""Budget: what exploration, and speculation that does not pay, may cost."""

from __future__ import annotations

import math

from duo.spec.constants import PolicyConfig


class Budget:
    """A credit in tokens' time of the target alone, `alone_s` seconds each (0 while unknown).

    A first text begins with more of it than a later one. It grows by a share of the time and of what was gained, and
    shrinks by what was spent and lost, compared with the target alone or, for the lookup, with doing without it.
    """

    def __init__(self, config: PolicyConfig, limits: tuple[float, float] | None = None) -> None:
        """`limits`: of a first and of a later text; None: those of drafting."""
        self._config = config
        self._texts = limits or (config.first, config.later)
        self.alone_s = 0.0
        self.begin(None, is_first=True)

    def begin(self, n_room: int | None, *, is_first: bool = False) -> None:
        """A text begins, of at most `n_room` tokens (None: no limit). `is_first`: nothing is known from others."""
        first, later = self._texts
        most = math.inf if n_room is None else self._config.share * n_room
        self._credit = min(first if is_first else later, most)
        self._extra = min(first, most) - self._credit  # if what is known turns out to be wrong
        self._gained = self._elapsed = 0.0

    def begin_again(self) -> None:
        """What was known from earlier texts is wrong: this one counts as the first."""
        self._credit, self._extra = self._credit + self._extra, 0.0

    @property
    def credit_s(self) -> float:
        """Seconds that may be spent on exploration."""
        return (self._credit + self._gained * (self._config.gain_share if self._gained > 0 else 1.0)) * self.alone_s

    @property
    def debt(self) -> float:
        """What was spent and lost beyond the credit, relative to that of a later text; at least 0."""
        return max(0.0, -self.credit_s / self.alone_s / self._texts[1]) if self.alone_s else 0.0

    def spend(self, seconds: float) -> None:
        """Exploration took this long."""
        self._credit -= seconds / self.alone_s if self.alone_s else 0.0

    def step(self, seconds: float, gained_s: float, alone_s: float) -> None:
        """A step took `seconds`, `gained_s` less than without what the budget is for."""
        self.alone_s = alone_s
        if alone_s:
            self._elapsed += seconds / alone_s
            config = self._config
            share = config.time_share if self._elapsed < config.horizon else config.late_share
            self._credit += share * seconds / alone_s
            self._gained += gained_s / alone_s

    def settle(self) -> None:
        """Drafting is given up: what it has lost beyond the budget of a first text is forgotten."""
        self._credit, self._gained = max(self._credit + min(0.0, self._gained), -self._texts[0]), 0.0
