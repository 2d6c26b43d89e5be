"""Backs: the lead's side of all drafts on other machines."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from duo.config import SamplingConfig
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue, Helper
from duo.llama.vocabulary import Fingerprint

log = logging.getLogger("duo.link")

MOST = 16  # backs at the same time
_MOST_LEARNED = 64  # models of backs of which is kept what was learned


@dataclass(frozen=True, slots=True)
class Target:
    """What backs must fit."""

    fingerprint: Fingerprint
    texts: Sequence[bytes]  # its vocabulary's own spelling of each token
    n_ctx: int


@dataclass(frozen=True, slots=True)
class Brief:
    """How the tokens of a text are chosen, so that a draft can guess them."""

    sampling: SamplingConfig
    banned: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A text that backs may help with."""

    queue: CandidateQueue
    metrics: Metrics
    brief: Brief


class Standing(Helper, Protocol):
    """A back as the others know it: duo.link.worker.Worker."""

    name: str

    def usable(self, job: Job | None) -> bool:
        """Whether it answers, and can guess in this text."""
        ...

    def stall(self) -> None:
        """It was not usable: it will not be before it has given a sign of life."""
        ...


class Backs:
    """Who is connected and who drafts: one; the others stand by in the order in which they came.

    Backs join and leave on the server's thread while the target's asks who is active: the lock protects the
    fields below it.
    """

    def __init__(self) -> None:
        self.bell = Bell()
        self.target: Target | None = None  # once the model is loaded
        self.counts: Counter[str] = Counter()  # joins, stale guesses, and drops by their reason
        self.latency_s = 0.0  # of the back that drafted last
        # Policy.state() by model and way of sampling. The target's thread's own.
        self.learned: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._line: list[Standing] = []
        self._active: Standing | None = None
        self._job: Job | None = None
        self._given_up: list[Standing] = []  # in this text
        self._serials = count(1)
        self._told: Standing | None = None  # who was last said to draft

    @property
    def n_connected(self) -> int:
        """Backs that may draft or stand by."""
        with self._lock:
            return len(self._line)

    @property
    def job(self) -> Job | None:
        """The text to help with."""
        with self._lock:
            return self._job

    def next_serial(self) -> int:
        """A number for one Begin."""
        return next(self._serials)

    # The server's side

    def join(self, back: Standing, *, always: bool = False) -> bool:
        """Let a back stand in line. False if there are too many, unless this one may `always`."""
        with self._lock:
            if len(self._line) >= MOST and not always:
                return False
            self._line.append(back)
            self.counts["joined"] += 1
            return True

    def leave(self, back: Standing, reason: str) -> None:
        """A back has gone."""
        with self._lock:
            self._line.remove(back)
            self.counts[f"dropped: {reason}"] += 1

    # The target's side

    def help_with(self, brief: Brief) -> Help:
        """The backs as helpers of one text."""
        return Help(self, brief)

    def begin(self, job: Job) -> None:
        """A text begins."""
        with self._lock:
            self._job = job

    def end(self) -> None:
        """It has ended."""
        with self._lock:
            if self._active is not None:
                self._active.notify()
            self._job = self._active = None
            self._given_up = []

    def active(self, *, otherwise: bool) -> Standing | None:
        """The back that drafts: the same as before while it is usable, else the first in line that is.

        One that was given up drafts only if there is no other, and no draft `otherwise`.
        """
        with self._lock:
            before, usable = self._active, [back for back in self._line if back.usable(self._job)]
            wanted = [back for back in usable if back not in self._given_up] or ([] if otherwise else usable)
            self._active = before if before in wanted else next(iter(wanted), None)
            if before is not self._active and before in self._line and before not in usable:
                self._relieve(before)
            news = self._active if self._active not in (None, self._told) else None
            self._told = self._active or self._told
        if news is not None:  # not under the lock: a terminal may be slow
            log.info("back %s drafts", news.name)
        return self._active

    def give_up(self, back: Helper) -> None:
        """What this back guesses is not worth its time in the present text: another one may be better."""
        with self._lock:
            if not any(known is back for known in self._given_up):
                self._given_up += [known for known in self._line if known is back]

    def _relieve(self, before: Standing) -> None:
        """It does not answer: it stands at the end of the line."""
        self._line.remove(before)
        self._line.append(before)
        before.stall()


class Bell:
    """Wakes the server's thread for the target's.

    To wake it, the target's thread would have to give up the interpreter for a moment, and would wait for it until the
    other one has done what it was woken for. This thread has the time.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # It holds nothing that would have to be put in order, and sleeps when the process ends.
        threading.Thread(target=self._run, name="duo-bell", daemon=True).start()

    def ring(self, wake: Callable[[], object]) -> None:
        """Have `wake` called soon. Never blocks."""
        self._calls.put(wake)

    def _run(self) -> None:
        while True:
            self._calls.get()()


class Help:
    """Helpers of one text: see duo.engine.helpers."""

    def __init__(self, backs: Backs, brief: Brief) -> None:
        self._backs = backs
        self._brief = brief

    def begin(self, queue: CandidateQueue, metrics: Metrics) -> None:
        """The text begins."""
        self._backs.begin(Job(queue, metrics, self._brief))

    def end(self) -> None:
        """It has ended."""
        self._backs.end()

    def active(self, *, otherwise: bool) -> Helper | None:
        """The back that drafts now."""
        return self._backs.active(otherwise=otherwise)

    def give_up(self, helper: Helper) -> None:
        """It is not worth its time in this text."""
        self._backs.give_up(helper)

    def learned(self, helper: Helper) -> dict[str, Any] | None:
        """What was learned about a back of this model."""
        return self._backs.learned.get((helper.model, self._brief.sampling.mode))

    def learn(self, helper: Helper, state: dict[str, Any]) -> None:
        """Keep it for the next text, for as long as the lead runs."""
        learned = self._backs.learned
        if len(learned) >= _MOST_LEARNED:
            learned.clear()
        learned[helper.model, self._brief.sampling.mode] = state
        self._backs.latency_s = state["latency_s"]
