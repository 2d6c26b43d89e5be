"""Budget: what finding out whether speculation pays may cost."""

from __future__ import annotations

from duo.spec.constants import PolicyConfig


class Budget:
    """A credit in seconds, which grows by a share of the time and by a share of what was gained.

    What is gained or lost is compared with the target alone. The credit is carried from text to text. `alone_s` is
    T(1), the target's time for one token; 0 while unknown.
    """

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self.alone_s = 0.0
        self._carried_s: float | None = None  # credit from earlier texts; None: this is the first
        self._begin()

    def _begin(self) -> None:
        self._is_used = False
        self._elapsed_s = self._spent_s = self._gained_s = 0.0

    def begin(self) -> None:
        """A text begins."""
        self._carried_s = self.carried_s
        self._begin()

    @property
    def credit_s(self) -> float:
        """Seconds that may be spent on finding out."""
        config = self._config
        advance_s = config.advance * self.alone_s
        earned_s = config.time_share * self._elapsed_s
        if self._carried_s is None:
            earned_s = max(advance_s, earned_s)
        else:
            earned_s += max(-advance_s, min(self._carried_s, advance_s))
        return earned_s - self._spent_s + self._gained_s * (config.gain_share if self._gained_s > 0 else 1.0)

    @property
    def carried_s(self) -> float | None:
        """The credit that the next text starts with; None before the first one."""
        return self.credit_s if self._is_used else self._carried_s

    def carry(self, seconds: float) -> None:
        """Start with the credit of an earlier run."""
        self._carried_s = seconds

    def spend(self, seconds: float) -> None:
        """Finding out took this long."""
        self._spent_s += seconds

    def step(self, seconds: float, gained_s: float, alone_s: float) -> None:
        """A step took `seconds`, `gained_s` less than the target alone."""
        self._is_used = True
        self.alone_s = alone_s
        self._elapsed_s += seconds
        self._gained_s += gained_s
