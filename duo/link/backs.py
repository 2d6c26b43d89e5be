"""Backs: the lead's side of all drafts on other machines."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
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


class Backs:
    """Who is connected and who drafts: one; the others stand by in the order in which they came.

    Backs join and leave on the server's thread while the target's asks who is active: the lock protects all fields.
    """

    def __init__(self, token: str = "", *, closed: bool = False) -> None:
        """`token` is what a back must know; empty: it need not know any. `closed`: none may join."""
        self.closed = closed
        self.token = token
        self.target: Target | None = None  # once the model is loaded
        self.counts: Counter[str] = Counter()  # joins, stale guesses, and drops by their reason
        self.latency_s = 0.0  # of the back that drafted last
        self._lock = threading.Lock()
        self._line: list[Standing] = []
        self._active: Standing | None = None
        self._job: Job | None = None
        self._serials = count(1)
        self._told: Standing | None = None  # who was last said to draft
        # Policy.state() by model and way of sampling. The target's thread's own.
        self.learned: dict[tuple[str, str], dict[str, Any]] = {}

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

    def join(self, back: Standing) -> bool:
        """Let a back stand in line. False if there are too many."""
        with self._lock:
            if len(self._line) >= MOST:
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

    def active(self) -> Standing | None:
        """The back that drafts: the same as before while it is usable, else the first in line that is."""
        with self._lock:
            before = self._active
            if before is None or before not in self._line or not before.usable(self._job):
                self._active = next((back for back in self._line if back.usable(self._job)), None)
            if before is not self._active:
                self._relieve(before)
            return self._active

    def _relieve(self, before: Standing | None) -> None:
        """Another one drafts now. The one that did, if it is still there, stands at the end of the line."""
        if before is not None and before in self._line:
            self._line.remove(before)
            self._line.append(before)
            before.notify()
            log.info("back %s does not answer", before.name)
            self.counts["stalled"] += 1
        if self._active not in (None, self._told):
            self._told = self._active
            log.info("back %s drafts", self._active.name)


class Help:
    """Helpers of one text: see duo.engine.helpers."""

    def __init__(self, backs: Backs, brief: Brief) -> None:
        self._backs = backs
        self._brief = brief
        self._mode = "coupled" if brief.sampling.temp else "greedy"  # what is learned in one says nothing of the other

    def begin(self, queue: CandidateQueue, metrics: Metrics) -> None:
        """The text begins."""
        self._backs.begin(Job(queue, metrics, self._brief))

    def end(self) -> None:
        """It has ended."""
        self._backs.end()

    def active(self) -> Helper | None:
        """The back that drafts now."""
        return self._backs.active()

    def learned(self, helper: Helper) -> dict[str, Any] | None:
        """What was learned about a back of this model."""
        return self._backs.learned.get((helper.model, self._mode))

    def learn(self, helper: Helper, state: dict[str, Any]) -> None:
        """Keep it for the next text, for as long as the lead runs."""
        learned = self._backs.learned
        if len(learned) >= _MOST_LEARNED:
            learned.clear()
        learned[helper.model, self._mode] = state
        self._backs.latency_s = state["latency_s"]
