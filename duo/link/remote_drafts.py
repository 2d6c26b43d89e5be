"""RemoteDrafts: the remote drafts that are connected, and the choice of the one in use."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable

from duo.config import DraftConfig, EngineConfig
from duo.engine.draft import QueuedDraft
from duo.engine.slot import schedules_of
from duo.link.admission import TargetVocabulary
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.policy_state import PolicyState

log = logging.getLogger("duo.link")

MOST = 16  # concurrent connections
_MAX_LEARNED = 64  # models whose policy is kept


class ConnectedDraft(QueuedDraft):
    """A remote draft, as the choice among several sees it."""

    name: str
    model: str
    number: int  # among all that have connected
    n_verified: int  # candidates, in all texts
    n_accepted: int
    is_unable: bool  # to draft for this text

    @property
    def is_working(self) -> bool:
        """Whether it drafts for a text."""
        raise NotImplementedError

    @property
    def is_usable(self) -> bool:
        """Whether it answers, and can draft for this text."""
        raise NotImplementedError

    def stall(self) -> None:
        """It has timed out: it is not usable until its next sign of life. Called under the drafts' lock."""
        raise NotImplementedError


class RemoteDrafts:
    """One draft is in use; the others stand by in the order in which they connected.

    Drafts connect and disconnect on the server's thread while the target's thread chooses one: the lock protects the
    fields below it.
    """

    def __init__(self) -> None:
        self.drafting = EngineConfig().drafting()
        self.vocabulary: str | None = None  # of the drafts: see DraftStatistics
        self.n_target_threads = 1  # while a remote draft is in use
        self.target: TargetVocabulary | None = None  # None while the model is loading
        self.on_ready: Callable[[threading.Event | None], None] = lambda _: None  # see ready()
        self.learned: dict[str, PolicyState] = {}  # by the draft's model; for the target's thread
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._makes_calls = False
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # of events
        self._line: list[ConnectedDraft] = []
        self._active: ConnectedDraft | None = None
        self._given_up: list[ConnectedDraft] = []  # in this text
        self._last_used: ConnectedDraft | None = None

    @property
    def connected(self) -> list[ConnectedDraft]:
        """The drafts that are connected, in the order in which they would be used."""
        with self._lock:
            return list(self._line)

    @property
    def n_connected(self) -> int:
        """Number of drafts that are connected."""
        return len(self.connected)

    @property
    def latency_s(self) -> float:
        """Round-trip time to the draft that was in use last, without the time to draft a token."""
        with self._lock:
            return self._last_used.policy.latency_s if self._last_used is not None else 0.0

    @property
    def counts(self) -> Counter[str]:
        """Number of events: joined, stalled, stale, and `dropped: ` and `refused: ` with a reason."""
        with self._lock:
            return self._counts.copy()

    def count(self, event: str, n: int = 1) -> None:
        """Count an event `n` times."""
        with self._lock:
            self._counts[event] += n

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call on another thread. Never blocks.

        If the target's thread woke the server's, it would release the GIL and wait until that thread has handled the
        wake-up.
        """
        self._calls.put(call)

    def new_policy(self, model: str) -> Policy:
        """A policy for a draft of this model, with the values learned for it so far."""
        drafting = self.drafting
        policy = Policy(drafting.n_max, drafting.n_ahead, schedules_of(drafting), remote=True)
        policy.restore_kept(self.learned.get(model))
        return policy

    # The server's side

    def join(self, draft: ConnectedDraft, *, always: bool = False) -> bool:
        """Add a draft. False if too many are connected; never with `always`."""
        with self._lock:
            if len(self._line) >= MOST and not always:
                return False
            self._line.append(draft)
            self._counts["joined"] += 1
            draft.number = self._counts["joined"]
            if not self._makes_calls:
                self._makes_calls = True
                # A daemon: it holds nothing that needs to be cleaned up at exit.
                threading.Thread(target=self._make_calls, name="duo-wake", daemon=True).start()
            return True

    def leave(self, draft: ConnectedDraft, reason: str) -> None:
        """Remove a draft that has disconnected."""
        with self._lock:
            self._line.remove(draft)
            self._counts[f"dropped: {reason}"] += 1
            if not self._line:
                self._makes_calls = False
                self._calls.put(None)

    # The target's side: see duo.engine.generation.RemoteSource

    def limit(self, drafting: DraftConfig, n_target_threads: int) -> None:
        """Set the limits of drafting, and the number of threads of the target while a remote draft is in use."""
        self.drafting, self.n_target_threads = drafting, n_target_threads

    def ready(self, target: Model, context: Context, stop: threading.Event | None) -> None:
        """Accept drafts from now on, and call `on_ready`. Raises what it raises."""
        self.target = TargetVocabulary.of(target, context)
        self.on_ready(stop)

    def begin(self) -> None:
        """A text begins: all drafts may be used again."""
        with self._lock:
            self._given_up = []
            for draft in self._line:
                draft.is_unable = False

    def choose(self, *, has_other: bool) -> ConnectedDraft | None:
        """The draft to use: the previous one while it is usable, else the first in line that is.

        One that does not pay is given up for this text: it is used only if there is no other one and no local draft
        (`has_other`).
        """
        with self._lock:
            before = self._active
            if before is not None and before.is_working and before.policy.prefers_target_alone:
                self._given_up.append(before)
            usable = [draft for draft in self._line if draft.is_usable]
            wanted = [draft for draft in usable if draft not in self._given_up] or ([] if has_other else usable)
            self._active = before if before in wanted else next(iter(wanted), None)
            if before is not None and before is not self._active and before in self._line and before not in usable:
                # It does not answer: move it to the end of the line.
                self._line.remove(before)
                self._line.append(before)
                before.stall()
            new = self._active if self._active not in (None, self._last_used) else None
            self._last_used = self._active or self._last_used
        if new is not None:  # not under the lock: a terminal may be slow
            log.info("draft %s is in use", new.name)
        return self._active

    def learn(self, model: str, state: PolicyState) -> None:
        """Keep the state of a policy for the next draft of this model."""
        self.learned.pop(model, None)
        if len(self.learned) >= _MAX_LEARNED:
            del self.learned[next(iter(self.learned))]  # the one that was used least recently
        self.learned[model] = state

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
