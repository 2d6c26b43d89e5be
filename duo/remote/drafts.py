"""RemoteDrafts: the remote drafts that are connected, and the choice of the one in use."""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from duo.config import EngineConfig
from duo.engine.async_draft import AsyncDraft, Drafted
from duo.engine.profile import Profiles
from duo.engine.proposers import RunningText
from duo.engine.statistics import StepRecord
from duo.llama.context import Context
from duo.llama.fingerprint import Fingerprint
from duo.llama.model import Model
from duo.remote.remote_queue import RemoteQueue
from duo.speculation.acceptance import Lookahead
from duo.speculation.draft_estimates import DraftEstimates, DraftState, estimates_for
from duo.speculation.modes import Schedule
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import Origin, Proposal

log = logging.getLogger("duo.remote")

MAX_DRAFTS = 16  # concurrent connections
_LATE_S = 0.1  # by which it may be late, beside a decode of the target
STALL_S = 5.0  # without a sign of life from a draft that may draft
_MAX_LEARNED = 64  # models of which what was learned is kept


class _Counted(NamedTuple):
    """What a draft's candidates are counted from."""

    n_verified: int = 0  # candidates of earlier texts
    n_accepted: int = 0
    steps: Sequence[StepRecord] = ()  # of this text,
    first: int = 0  # and the first one with this draft


class RemoteDraft(AsyncDraft):
    """A remote draft, for the target's thread; the queue and the fields below `current` are the connection's, too."""

    _queue: RemoteQueue
    _queue_type = RemoteQueue
    _told: Lookahead | None = None  # with which the connection was last woken
    _is_remote = True

    def __init__(
        self, drafts: "RemoteDrafts", name: str, model: str, wake: Callable[[], object], process: str = ""
    ) -> None:
        """`wake` lets the connection look for a new order; `process`: see Hello."""
        super().__init__(drafts.new_estimates(model))
        self.name, self.model, self.process = name, model, process
        self.number = 0  # among all that have connected
        self._counted = _Counted()  # replaced as a whole
        self._drafts = drafts
        self._wake = wake
        self._drafted_until = 0.0
        self.current: tuple[RunningText, RemoteQueue] | None = None  # the text to draft for; replaced as a whole
        self.waiting_since: float | None = None  # its last sign of life, while it may draft
        self.has_stalled = False  # since its last sign of life
        self.is_unable = self.is_given_up = False  # in this text: cannot draft; does not pay
        self.is_new = True  # whether it was never used
        self.measured: Mapping[int, float] | None = None  # seconds by sequences, until learned; None: not said yet

    @property
    def is_set_up(self) -> bool:
        """Whether it has said its times, which it does when it can decode."""
        return self.measured is not None

    @property
    def is_usable(self) -> bool:
        """Whether it answers, and can draft for this text."""
        since = self.waiting_since
        late = since is not None and time.perf_counter() - since > STALL_S
        return not (late or self.has_stalled or self.is_unable)

    @property
    def counts(self) -> tuple[int, int]:
        """Its candidates that were verified, and those accepted, since it connected. From any thread."""
        known = self._counted
        own = [step for step in known.steps[known.first :] if step.source is Origin.DRAFT]
        n_verified, n_accepted = sum(step.n_candidates for step in own), sum(step.n_accepted for step in own)
        return known.n_verified + n_verified, known.n_accepted + n_accepted

    def recall(self) -> None:
        if self.is_new:
            self.is_new = False
            if (learned := self._drafts.learned.get(self.model)) is not None:  # T(n) is the target's thread's to change
                self.estimates.restore(learned)

    def begin(self, text: RunningText) -> None:
        super().begin(text)
        recorder = text.recorder
        recorder.vocabulary, recorder.lost_to_translation = self._drafts.vocabulary, None
        self._counted = _Counted(*self.counts, recorder.steps, len(recorder.steps))
        self._queue.open()
        self._told = self._lookahead
        self.current = text, self._queue
        self._drafts.calls.put(self._wake)

    def propose(self, texts: Sequence[RunningText]) -> Proposal:
        # The proposal may begin with an order: see commit().
        is_new, proposal = self._is_new, super().propose(texts)
        if is_new and self._lookahead != self._told:
            self._told = self._lookahead
            self._drafts.calls.put(self._wake)
        return proposal

    def _longest_wait_s(self) -> float:
        # It may be slow for unknown reasons.
        return _LATE_S + self.estimates.target.alone.seconds(1)

    def verifies(self, n: int) -> None:
        super().verifies(n)
        if self._lookahead.n_branches:
            self._drafts.calls.put(self._wake)

    def _order(self, *, is_useless: bool) -> None:
        if is_useless or not self._queue.is_told_to_draft:  # the draft waits for it, and this thread until it is sent
            with suppress(RuntimeError):  # the server has stopped
                self._wake()
        else:
            self._drafts.calls.put(self._wake)

    def _allow(self) -> None:
        self._learn_measured()
        super()._allow()

    def _learn_measured(self) -> None:
        if self.measured:
            measured, self.measured = self.measured, {}
            self.estimates.learn_sequences(measured)

    def end(self) -> None:
        if self.current is not None:
            self._queue.close()
            self._counted, self.current = _Counted(*self.counts), None
            self._drafts.calls.put(self._wake)
            self._drafts.learn(self.model, self.estimates.state())

    def interrupt(self) -> None:
        self._queue.close()

    def _learn_drafted(self, drafted: Drafted) -> None:
        self._learn_measured()  # before the first decode: see DraftCosts.replace()
        if drafted.latency_s is not None:
            self.estimates.costs.add_latency(drafted.latency_s)
        if self.estimates.schedule is Schedule.ASYNC:
            super()._learn_drafted(drafted)
        if drafted.is_useful:  # an estimate of when it was drafted
            now = self._now()
            start = max(self._drafted_until, now - drafted.seconds)
            self._metrics.drafted(start, now, drafted.n_tokens, "remote draft")
            if drafted.n_prepared:
                self._metrics.prepared(start, now, drafted.n_prepared, drafted.n_opened)
            self._drafted_until = now


class RemoteDrafts:
    """One draft is in use; the others stand by in the order in which they connected.

    Drafts connect and disconnect on the server's thread while the target's thread chooses one: the lock protects the
    fields below it.
    """

    def __init__(self) -> None:
        self.drafting = EngineConfig().drafting()
        self.costs = TargetCosts()  # of the target that is announced
        self.vocabulary: str | None = None  # of the drafts: see DraftStatistics
        self.target: Fingerprint | None = None  # that drafts must match; None while the model is loading
        self.n_ctx = 0  # of the target's context
        self.on_ready: Callable[[threading.Event | None], None] = lambda _: None  # see ready()
        self.learned: dict[str, DraftState] = {}  # by the draft's model; for the target's thread
        # Made on another thread: if the target's thread woke the server's, it would release the GIL and wait until that
        # one has handled the wake-up.
        self.calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # of events
        self._line: list[RemoteDraft] = []
        self._active: RemoteDraft | None = None
        self._last_used: RemoteDraft | None = None

    @property
    def connected(self) -> list[RemoteDraft]:
        """The drafts that are connected, in the order in which they would be used."""
        with self._lock:
            return list(self._line)

    @property
    def latency_s(self) -> float:
        """Round-trip time to the draft that was in use last, without the time to draft a token."""
        with self._lock:
            return self._last_used.estimates.costs.latency_s if self._last_used is not None else 0.0

    @property
    def counts(self) -> Counter[str]:
        """Number of events: joined, stalled, stale, and `dropped: ` and `refused: ` with a reason."""
        with self._lock:
            return self._counts.copy()

    def count(self, event: str) -> None:
        """Count an event."""
        with self._lock:
            self._counts[event] += 1

    def new_estimates(self, model: str) -> DraftEstimates:
        """What will be known of a draft of this model, which may be that of a local draft, too."""
        return estimates_for(self.costs, self.drafting, remote=True, name=f"{model}, remote")

    def restore(self, profiles: Profiles) -> None:
        """Start from what is stored of drafts."""
        for name, profile in profiles.drafts.items():
            if "draft" in (document := profile.load()):
                self.learned[name] = document["draft"]

    # The server's side

    def join(self, draft: RemoteDraft, *, always: bool = False) -> bool:
        """Add a draft. False if too many are connected; never with `always`."""
        with self._lock:
            if len(self._line) >= MAX_DRAFTS and not always:
                return False
            if not self._line:  # a daemon: it holds nothing that needs to be cleaned up at exit
                threading.Thread(target=self._make_calls, name="duo-wake", daemon=True).start()
            self._line.append(draft)
            self._counts["joined"] += 1
            draft.number = self._counts["joined"]
            return True

    def leave(self, draft: RemoteDraft, reason: str) -> None:
        """Remove a draft that has disconnected, for whose candidates the target then waits no longer."""
        with self._lock:
            self._line.remove(draft)
            self._counts[f"dropped: {reason}"] += 1
            if not self._line:
                self.calls.put(None)
        if draft.current is not None:
            draft.interrupt()

    # The target's side: see duo.engine.proposers.ConnectedDrafts

    def ready(self, target: Model, context: Context, stop: threading.Event | None) -> None:
        """Accept drafts from now on, and call `on_ready`. Raises what it raises."""
        self.target, self.n_ctx = Fingerprint.of(target), context.n_ctx
        self.on_ready(stop)

    def begin(self) -> None:
        """A text begins: all drafts that are not in use may be used again."""
        with self._lock:
            for draft in self._line:
                if draft.current is None:
                    draft.is_unable = draft.is_given_up = False

    def choose(self) -> RemoteDraft | None:
        """The draft to use: the previous one while it is usable, else the first in line that is.

        One that does not pay is given up for this text. It is used only if there is no other one, as is one that
        does not decode yet.
        """
        with self._lock:
            before, line = self._active, self._line
            if before is not None and before.current is not None and not before.estimates.is_chosen:
                for draft in line:
                    draft.is_given_up |= draft is before or "" != draft.process == before.process
            usable = [draft for draft in line if draft.is_usable]
            wanted = [draft for draft in usable if draft.is_set_up and not draft.is_given_up] or usable
            active = self._active = before if before in wanted else next(iter(wanted), None)
            late = [before] if before in line and before not in usable and self._is_late(before) else []
            new = None
            if active is not None and active is not self._last_used:
                self._last_used = new = active
        if before is not None and before is not active and before.current is not None:
            self.learn(before.model, before.estimates.state())  # the next one may be of the same model
        self._say(late, new)
        if active is not None:
            active.recall()
        return active

    def choose_all(self) -> list[RemoteDraft]:
        """The drafts that can be used at once, each for another text: choose() and all others that decode."""
        first = self.choose()
        with self._lock:
            others = [draft for draft in self._line if draft is not first]
            late = [draft for draft in others if draft.current is not None and not draft.is_usable]
            late = [draft for draft in late if self._is_late(draft)]
            others = [draft for draft in others if draft.is_usable and draft.is_set_up]
        self._say(late)
        return [first, *others] if first is not None else []

    def _is_late(self, draft: RemoteDraft) -> bool:
        """Put a draft that is not usable behind the others. Whether it gives no sign of life. Called under the lock."""
        self._line.append(self._line.pop(self._line.index(draft)))
        if draft.is_unable:
            return False
        draft.has_stalled = True
        self._counts["stalled"] += draft.is_set_up
        return True

    def _say(self, late: Sequence[RemoteDraft], new: RemoteDraft | None = None) -> None:
        """Not under the lock: a terminal may be slow."""
        for draft in late:
            log.info("draft %s %s", draft.name, "does not answer" if draft.is_set_up else "does not decode yet")
        if new is not None:
            log.info("draft %s is in use", new.name)

    def learn(self, model: str, state: DraftState) -> None:
        """Keep what was learned for the next draft of this model."""
        self.learned.pop(model, None)
        if len(self.learned) >= _MAX_LEARNED:
            del self.learned[next(iter(self.learned))]  # the one that was used least recently
        self.learned[model] = state

    def _make_calls(self) -> None:
        for call in iter(self.calls.get, None):
            with suppress(RuntimeError):  # the server has stopped
                call()
