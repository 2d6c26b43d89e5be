"""Drafting: the draft's part in a generation, in whatever schedule the policy follows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from duo.config import ThreadConfig
from duo.engine.decoder import Decoder
from duo.engine.draft_thread import DraftThread
from duo.engine.drafter import Drafter
from duo.engine.helpers import Helpers
from duo.engine.queue import CandidateQueue, Helper
from duo.errors import DecodeAborted
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.types import Candidates


class Drafting:
    """Brings candidates to the target: from a thread beside it, in turns with it, or none.

    Called on the target's thread. In turns that thread drives both models, and while they do the draft has no thread
    of its own: two idle teams of OpenMP threads on the same cores would slow each other down. Leaving `with` ends the
    draft's thread.

    A draft on another machine goes before the local one for as long as it is there. Each has a policy of its own.
    """

    def __init__(
        self,
        target: Decoder,
        draft: Decoder | None,
        drafter: Drafter | None,
        queue: CandidateQueue,
        threads: ThreadConfig,
        helpers: Helpers | None = None,
    ) -> None:
        """`drafter` drives `draft`; both None: there is no local draft."""
        self._target = target
        self._draft = draft
        self._drafter = drafter
        self._queue = queue
        self._threads = threads
        self._local_policy = self.policy = queue.policy  # of the last draft that there was
        self._helpers = helpers
        self._helper: Helper | None = None
        self._schedule: Schedule | None = None  # that the threads were set for
        self._thread: DraftThread | None = None
        self._running = ExitStack()
        self.error: BaseException | None = None

    def __enter__(self) -> Drafting:
        """Begin to draft before the prompt is read if that is in nobody's way."""
        self._look_for_helper()
        if self._helper is None and self._threads.apart and self._queue.schedule() is Schedule.ASYNC:
            self._begin_beside()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the drafting."""
        self._dismiss()
        self._end_beside()

    @property
    def schedule(self) -> Schedule:
        """The schedule that is followed now."""
        return self._schedule or Schedule.OFF

    def candidates(self, n_room: int) -> Candidates:
        """The candidates to verify now; the text has room for `n_room` tokens."""
        if self._thread is not None and self._thread.error is not None:
            self.error = self._thread.error
        self._look_for_helper()
        schedule = self._queue.schedule()
        if schedule is not self._schedule:
            self._follow(schedule)
        if schedule is Schedule.ASYNC:
            return self._queue.take(n_room)
        if self._queue.probe_due():
            self._ask(lambda drafter: drafter.probe(Policy.PROBE_TOKENS))
        if schedule is Schedule.SYNC:
            return self._take_in_turn(n_room)
        return Candidates()

    def _follow(self, schedule: Schedule) -> None:
        """Give both models the threads that they have in this schedule."""
        self._schedule = schedule
        if schedule is Schedule.ASYNC and self._helper is None:
            target = self._threads.beside[0]
            self._target.set_threads(target, target)
            self._begin_beside()
        else:
            self._end_beside()
            self._target.set_threads(self._threads.target, self._threads.target)

    def _look_for_helper(self) -> None:
        """Let the draft elsewhere work that is there now; the local one if there is none."""
        if self._helpers is None:
            return
        if self._helper is not None and self.policy.does_without:
            self._helpers.give_up(self._helper)
        helper = self._helpers.active(otherwise=self._draft is not None)
        if helper is self._helper:
            return
        self._dismiss()
        self._helper = helper
        self._schedule = None
        if helper is None:
            self.policy = self._local_policy if self._draft is not None else self.policy
            self._queue.employ(self._local_policy)
            return
        self._end_beside()
        self.policy = self._local_policy.for_draft_elsewhere()
        if (learned := self._helpers.learned(helper)) is not None:
            self.policy.restore(learned)
        self.policy.begin(self._queue.n_accepted)
        self._queue.employ(self.policy, helper)

    def _dismiss(self) -> None:
        """Keep what was learned about the draft elsewhere."""
        if self._helpers is not None and self._helper is not None and self.policy.rate:
            self._helpers.learn(self._helper, self.policy.state())

    def _take_in_turn(self, n_room: int) -> Candidates:
        while (candidates := self._queue.take_in_turn(n_room)) is None:
            self._ask(self._draft_one)
        return candidates

    def _draft_one(self, drafter: Drafter) -> None:
        if not drafter.step():
            self._queue.stop_drafting()

    def _ask(self, act: Callable[[Drafter], None]) -> None:
        """Let the draft compute on this thread. If it dies the target goes on without it."""
        assert self._drafter is not None
        assert self._draft is not None
        n = self._queue.draft_threads()
        self._draft.set_threads(n, self._threads.target)
        try:
            act(self._drafter)
        except DecodeAborted:
            raise  # the whole generation was
        except Exception as error:  # whatever it is, the text goes on
            self.error = error
            self._queue.stop_drafting()

    def _begin_beside(self) -> None:
        if self._thread is None:
            assert self._drafter is not None
            assert self._draft is not None
            n = self._threads.beside[1]
            self._draft.set_threads(n, n)
            thread = DraftThread(self._drafter, self._queue, self._draft, self._threads.draft_cores)
            self._thread = self._running.enter_context(thread)

    def _end_beside(self) -> None:
        if self._thread is not None:
            self._running.close()
            self.error = self.error or self._thread.error
            self._thread = None
