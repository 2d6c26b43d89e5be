"""FreeCores: how many cores the decodes use beside other programs.

The threads that compute a decode wait for each other hundreds of times in it. If one of them has to wait for a core,
all do, and a decode may take fifty times as long. One thread fewer costs little.
"""

from __future__ import annotations

import math

_ENOUGH = 0.1  # core-seconds that others used of those that the decodes need, after which these use fewer
_QUIET_S = 0.4  # without them, after which the decodes use more
_MORE = 0.25  # cores that others must use in addition before fewer are tried again
_SLOWER = 1.5  # times the usual time takes a decode that was disturbed
_SLOW = 3  # such decodes in a row, after which fewer cores are tried
_TRIAL = 6  # decodes that are compared
_REST, _MOST_REST = 32, 256  # decodes until more cores are tried; each trial in vain doubles it


class FreeCores:
    """Uses fewer cores while others compute, and all again afterwards.

    On systems that tell the load (used(), begin()): the cores that others leave, at once. If others use so little that
    it takes a while to be sure, the times of some decodes decide whether fewer cores are faster. On other systems: half
    of the cores are tried when decodes become slow, and one more now and then; their times decide.
    """

    def __init__(self, n_cores: int, tolerated: float) -> None:
        """There are `n_cores`; others that use at most `tolerated` of them disturb nothing."""
        self._n_cores = n_cores
        self._tolerated = tolerated
        self.n = n_cores  # to use now
        self._is_told = False  # whether the system tells the load
        self._n_others = 0.0  # the load
        self._excess = 0.0  # core-seconds that others used of those that the decodes need; negative: seconds of less
        self._endured = 0.0  # the load beside which fewer cores were slower
        self._times: dict[int, float] = {}  # of recent decodes on these cores, by tokens
        self._usual: dict[tuple[int, int], float] = {}  # undisturbed, by cores and tokens
        self._n_decodes = self._n_slow = 0  # since the last trial; that were disturbed, in a row
        self._rest = 0  # decodes until the next trial, after one in vain
        self._before: tuple[int, dict[int, float]] | None = None  # in a trial: the other number, and times with it
        self._trial = (0, 0.0, 0.0)  # decodes, their seconds, and seconds before

    def begin(self, n_waiting: int) -> None:
        """`n_waiting` threads of other programs want to compute right now."""
        self._is_told = True
        self._use(self._left(n_waiting))

    def used(self, n_others: float, seconds: float) -> None:
        """Others used `n_others` cores in the last `seconds`."""
        self._is_told, self._n_others = True, n_others
        left = self._left(n_others)
        if left > self.n:
            self._excess = min(self._excess, 0.0) - seconds
            if self._excess <= -_QUIET_S:
                self._use(left)
        elif left < self.n and n_others > self._endured:
            if self._excess <= 0:  # the load began during these decodes
                self._excess = 0.0
                self._times.clear()
            self._excess += (n_others - self._tolerated - (self._n_cores - self.n)) * seconds
            if self._excess >= _ENOUGH:
                self._try(left)
        else:
            self._excess = 0.0
            if left == self._n_cores:
                self._endured = 0.0

    def decoded(self, n_tokens: int, seconds: float) -> None:
        """A batch of `n_tokens` was decoded."""
        self._times[n_tokens] = (self._times.get(n_tokens, seconds) + seconds) / 2
        self._n_decodes += 1
        if self._before is not None:
            self._compare(*self._before, n_tokens, seconds)
        elif not self._is_told:
            self._judge(n_tokens, seconds)

    def _compare(self, was: int, before: dict[int, float], n_tokens: int, seconds: float) -> None:
        """Return to `was` cores if that is faster."""
        if n_tokens not in before:
            return
        n, now_s, before_s = self._trial
        n, now_s, before_s = self._trial = n + 1, now_s + seconds, before_s + before[n_tokens]
        if n < _TRIAL and now_s < _TRIAL * before_s / n:
            return
        if now_s < before_s:
            self._before, self._rest = None, 0
            if self.n > was:  # perhaps there are even more
                self._n_decodes = _REST
        else:
            self._rest = min(max(_REST, 2 * self._rest), _MOST_REST)
            self._endured = self._n_others + _MORE
            self._use(was)

    def _judge(self, n_tokens: int, seconds: float) -> None:
        """Try fewer cores if decodes are slow, and more after a while."""
        usual = self._usual.get((self.n, n_tokens))
        if usual is None:  # at most
            usual = self._usual.get((self._n_cores, n_tokens), seconds) * self._n_cores / self.n
        self._n_slow = self._n_slow + 1 if seconds > _SLOWER * usual else 0
        if not self._n_slow:
            self._usual[self.n, n_tokens] = usual + (seconds - usual) / 8
        if self._n_slow >= _SLOW and self.n > 1 and self._n_decodes >= self._rest:
            self._try(self.n // 2)
        elif self.n < self._n_cores and self._n_decodes >= max(_REST, self._rest):
            self._try(self.n + 1)

    def _left(self, n_others: float) -> int:
        """The cores that others leave to the decodes."""
        return min(max(1, self._n_cores - math.ceil(n_others - self._tolerated)), self._n_cores)

    def _try(self, n: int) -> None:
        """Use `n` cores, and compare them with those now if there are times."""
        before = self.n, self._times
        self._use(n)
        if before[1]:
            self._before = before

    def _use(self, n: int) -> None:
        self.n, self._times, self._before, self._trial = n, {}, None, (0, 0.0, 0.0)
        self._excess, self._n_decodes, self._n_slow = 0.0, 0, 0
