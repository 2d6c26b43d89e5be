"""CoresInUse: measures what other programs use, and limits the threads of the decodes to the other cores."""

from __future__ import annotations

import logging
import time

from duo.engine import load
from duo.engine.cores import cpu_quota, usable_cores
from duo.engine.free_cores import FreeCores

log = logging.getLogger("duo.engine")

_READ_EVERY_S = 0.2  # the resolution of the system's times is 0.01 s
_STALE_S = 1.0


class CoresInUse:
    """The thread that decodes calls it, between two decodes."""

    def __init__(self, *, follows: bool = True) -> None:
        """`follows`: whether to limit the threads. If not, `fewest` says what the limit would have been."""
        self.n_cores = self.fewest = usable_cores()  # `fewest`: that other programs have left so far
        self._free = FreeCores(self.n_cores, load.tolerated(self.n_cores))
        self._follows = follows
        self._is_shared = cpu_quota() is None  # under a quota, others have their own share of the cores
        self._since: load.Moment | None = None  # the last reading
        self._n_noted = self.n_cores

    @property
    def limit(self) -> int:
        """The most threads that may compute at once: see within(). 0: as many as there are."""
        return self._free.n if self._follows and self._free.n < self.n_cores else 0

    def begin(self) -> None:
        """A text begins. After a pause, its first decode already needs the right number of threads."""
        now = load.moment()
        if self._since is not None and now.now - self._since.now < _STALE_S:
            return
        if now.total_s is not None and (n_waiting := load.waiting()) is not None:
            self._free.begin(n_waiting)
            self._note()
        elif self._since is not None:
            self._read(self._since, now)
        self._since = now

    def decoded(self, n_tokens: int, seconds: float) -> None:
        """The target decoded a batch of `n_tokens`."""
        if self._follows:
            self._free.decoded(n_tokens, seconds)
        if self._since is not None and time.monotonic() - self._since.now >= _READ_EVERY_S:
            now = load.moment()
            self._read(self._since, now)
            self._since = now
        self._note()

    def _read(self, since: load.Moment, now: load.Moment) -> None:
        if self._is_shared and since.total_s is not None and now.total_s is not None:
            self._free.used(load.others(since, now), now.now - since.now)

    def _note(self) -> None:
        n = self._free.n
        if n != self._n_noted:
            log.debug("other programs leave %d of %d cores", n, self.n_cores)
            self._n_noted, self.fewest = n, min(n, self.fewest)
