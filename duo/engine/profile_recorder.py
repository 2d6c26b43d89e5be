"""What a profile keeps of a policy: times with all cores only if no other program shared them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duo.engine.cores import usable_cores
from duo.engine.free_cores import cpu_times, is_busy, other_cpu_use
from duo.spec.policy import Policy

_TIMES = ("read_s", "latency_s", "bias")  # in a policy's state, like those in "costs" by the number of free cores
_ALL = "0"  # there: all cores

log = logging.getLogger("duo.engine")


class ProfileRecorder:
    """Watches a policy learn. From the first text on that was disturbed, it keeps the times that were known before.

    Times with fewer than all cores were measured beside other programs, and are kept as such.
    """

    def __init__(self, policy: Policy, n_threads: int) -> None:
        """`n_threads`: the most that compute at once on the cores of this machine."""
        self._policy = policy
        self._n_threads = n_threads
        self._n_others = 0.0
        self.begin()

    @property
    def n_others(self) -> float:
        """Cores that other programs used when they first slowed down what was measured; 0: they did not."""
        return self._n_others

    def begin(self) -> None:
        """Something will be measured now."""
        self._since = cpu_times()
        if not self._n_others:
            state = self._policy.state()
            self._before = {name: state[name] for name in _TIMES}
            self._costs_before = {_ALL: state["costs"][_ALL]}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Something is measured within."""
        self.begin()
        try:
            yield
        finally:
            self.check()

    def check(self) -> None:
        """Something has been measured since begin() or the last check()."""
        n_others = other_cpu_use(self._since)
        self._since = cpu_times()
        if not self._n_others and is_busy(n_others, self._n_threads):
            self._n_others = n_others

    def state(self) -> dict[str, Any]:
        """What to keep, as JSON types; empty if nothing was learned. The log file says what is not kept."""
        if not self._policy.rate:
            return {}
        if not self._n_others:
            return self._policy.state()
        log.debug(
            "other programs used %.1f of %d cores: the times of this run are not kept", self._n_others, usable_cores()
        )
        state = self._policy.state()
        return state | self._before | {"costs": state["costs"] | self._costs_before}
