"""Budget: what finding out whether speculation pays may cost."""

from __future__ import annotations

from duo.spec.constants import PolicyConfig


class Budget:
    """A credit in tokens' time of the target alone, `alone_s` seconds each (0 while unknown).

    A first text begins with more of it than a later one. It grows by a share of the time and of what was gained, and
    shrinks by what was spent and lost, all compared with the target alone. What is left is carried to the next text.
    """

    def __init__(self, config: PolicyConfig, limits: tuple[float, float] | None = None) -> None:
        """`limits`: of a first and of a later text; None: those of drafting."""
        self._config = config
        first, self._later = limits or (config.first, config.later)
        self.alone_s = 0.0
        self._credit = self._most = first
        self._gained = 0.0  # in this text
        self._limit = first

    def begin(self, n_room: int | None) -> None:
        """A text begins, of at most `n_room` tokens (None: no limit)."""
        if self.alone_s:  # not the first
            self._credit, self._most = self.carried, self._later
        self._gained = 0.0
        self._limit = self._most if n_room is None else min(self._most, self._config.share * n_room)

    @property
    def credit_s(self) -> float:
        """Seconds that may be spent on finding out."""
        gained = self._gained * (self._config.gain_share if self._gained > 0 else 1.0)
        return (min(self._credit, self._limit) + gained) * self.alone_s

    @property
    def carried(self) -> float:
        """The credit that the next text starts with."""
        return max(-self._later, min(self._credit + min(0.0, self._gained), self._later))

    def carry(self, credit: float, alone_s: float) -> None:
        """Start with the credit of an earlier run."""
        self._credit, self.alone_s = credit, alone_s

    def spend(self, seconds: float) -> None:
        """Finding out took this long."""
        if self.alone_s:
            self._credit -= seconds / self.alone_s
            self._limit -= seconds / self.alone_s

    def step(self, seconds: float, gained_s: float, alone_s: float) -> None:
        """A step took `seconds`, `gained_s` less than the target alone."""
        self.alone_s = alone_s
        if alone_s:
            self._credit = min(self._most, self._credit + self._config.time_share * seconds / alone_s)
            self._gained += gained_s / alone_s
