"""RemoteDrafts: the drafts on other machines that are connected, and the choice of the one that works."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duo.config import DraftConfig, EngineConfig
from duo.engine.slot import schedules_of
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.vocabulary import Fingerprint
from duo.spec.policy import Policy

if TYPE_CHECKING:
    from duo.link.process import DraftProcess
    from duo.link.remote_draft import RemoteDraft

log = logging.getLogger("duo.link")

MOST = 16  # connected at the same time
_MOST_LEARNED = 64  # models of which is kept what was learned


@dataclass(frozen=True, slots=True)
class TargetVocabulary:
    """What a draft must fit."""

    fingerprint: Fingerprint
    texts: Sequence[bytes]  # the vocabulary's own spelling of each token
    n_ctx: int  # longest text

    @classmethod
    def of(cls, model: Model, context: Context) -> TargetVocabulary:
        """A target's."""
        return cls(Fingerprint.of(model), model.token_texts(model.n_vocab), context.n_ctx)


class RemoteDrafts:
    """One of them works; the others stand by in the order in which they came.

    They join and leave on the server's thread while the target's asks which one to use: the lock protects the fields
    below it.
    """

    def __init__(self) -> None:
        self.drafting = EngineConfig().drafting()
        self.n_target_threads = 1  # while one of them works
        self.target: TargetVocabulary | None = None  # once the model is loaded
        self.process: DraftProcess | None = None  # that is started when there is a target
        self.learned: dict[str, dict[str, Any]] = {}  # Policy.state() by the draft's model; the target's thread's own
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._makes_calls = False
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # joins, stale guesses, and drops by their reason
        self._line: list[RemoteDraft] = []
        self._active: RemoteDraft | None = None
        self._given_up: list[RemoteDraft] = []  # in this text
        self._named: RemoteDraft | None = None  # the last that was said to work

    @property
    def n_connected(self) -> int:
        """Drafts that work or stand by."""
        with self._lock:
            return len(self._line)

    @property
    def latency_s(self) -> float:
        """Round trip to the draft that worked last, without the time to make a guess."""
        with self._lock:
            return self._named.policy.latency_s if self._named is not None else 0.0

    @property
    def counts(self) -> Counter[str]:
        """How often what has happened."""
        with self._lock:
            return self._counts.copy()

    def count(self, what: str, n: int = 1) -> None:
        """It has happened `n` times more."""
        with self._lock:
            self._counts[what] += n

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call soon, on a thread that has the time. Never blocks.

        To wake the server's thread, the target's would have to give up the interpreter for a moment, and would wait for
        it until the other one has done what it was woken for.
        """
        self._calls.put(call)

    def new_policy(self, model: str) -> Policy:
        """A policy for a draft of this model, which begins with what was learned about such a one."""
        drafting = self.drafting
        policy = Policy(drafting.n_max, drafting.n_ahead, schedules_of(drafting), remote=True)
        policy.restore_kept(self.learned.get(model))
        return policy

    # The server's side

    def join(self, draft: RemoteDraft, *, always: bool = False) -> bool:
        """Let a draft take part. False if there are too many, unless this one may `always`."""
        with self._lock:
            if len(self._line) >= MOST and not always:
                return False
            self._line.append(draft)
            self._counts["joined"] += 1
            if not self._makes_calls:
                self._makes_calls = True
                # It holds nothing that would have to be put in order, and sleeps when the process ends.
                threading.Thread(target=self._make_calls, name="duo-wake", daemon=True).start()
            return True

    def leave(self, draft: RemoteDraft, reason: str) -> None:
        """A draft has gone."""
        with self._lock:
            self._line.remove(draft)
            self._counts[f"dropped: {reason}"] += 1
            if not self._line:
                self._makes_calls = False
                self._calls.put(None)

    # The target's side: see duo.engine.generation.RemoteSource

    def limit(self, drafting: DraftConfig, n_target_threads: int) -> None:
        """How far they may guess ahead, and the threads that the target has while one of them works."""
        self.drafting, self.n_target_threads = drafting, n_target_threads

    def ready(self, target: Model, context: Context, stop: threading.Event | None) -> None:
        """Drafts may join from now on, and the process is started. Raises UsageError if it cannot be as asked for."""
        self.target = TargetVocabulary.of(target, context)
        if self.process is not None and not self.process.is_started:
            self.process.start(stop)

    def begin(self) -> None:
        """A text begins: each may work again."""
        with self._lock:
            self._given_up = []
            for draft in self._line:
                draft.is_unable = False

    def choose(self, *, has_other: bool) -> RemoteDraft | None:
        """The one to use: the same as before while it is usable, else the first in line that is.

        One that is not worth its time is given up in this text: it works only if there is no other, and no local draft
        (`has_other`).
        """
        with self._lock:
            before = self._active
            if before is not None and before.is_working and before.policy.does_without:
                self._given_up.append(before)
            usable = [draft for draft in self._line if draft.is_usable]
            wanted = [draft for draft in usable if draft not in self._given_up] or ([] if has_other else usable)
            self._active = before if before in wanted else next(iter(wanted), None)
            if before is not None and before is not self._active and before in self._line and before not in usable:
                # It does not answer: it stands at the end of the line.
                self._line.remove(before)
                self._line.append(before)
                before.stall()
            news = self._active if self._active not in (None, self._named) else None
            self._named = self._active or self._named
        if news is not None:  # not under the lock: a terminal may be slow
            log.info("draft %s works", news.name)
        return self._active

    def learn(self, model: str, state: dict[str, Any]) -> None:
        """Keep what was learned about a draft of this model, for when such a one joins again."""
        if len(self.learned) >= _MOST_LEARNED:
            self.learned.clear()
        self.learned[model] = state

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
