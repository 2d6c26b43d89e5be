"""LocalDraft: a draft model in this process, concurrent with the target or sequential."""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from duo.config import ThreadConfig
from duo.engine.async_draft import AsyncDraft, Drafted, State
from duo.engine.block_drafter import BlockDrafter
from duo.engine.drafter import Drafter, DraftThread
from duo.engine.head_drafter import HeadDrafter
from duo.engine.kv_store import Cache
from duo.engine.prepared_outcomes import PreparingDrafter
from duo.engine.proposers import Result, RunningText
from duo.engine.recorder import SHARED, TRANSLATED
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DecodeAborted
from duo.llama.block import BlockContext
from duo.speculation.constants import DEFAULT
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from duo.speculation.types import Candidate, Probe, Proposal

log = logging.getLogger("duo.engine")

_MAX_PER_CHARACTER = 4  # tokens of a character: its bytes


class LocalDraft(AsyncDraft):
    """Follows the schedule that the controller chooses.

    Schedule async: the draft has its own thread. Sync: the target's thread runs both models and the draft's thread is
    joined, because two teams of OpenMP threads on the same cores slow each other down even if one is idle.
    """

    def __init__(
        self, cache: Cache, estimates: DraftEstimates, translation: Translation | None = None, *, is_head: bool = False
    ) -> None:
        """`translation`: of a draft with another vocabulary. `is_head`: the context is a HeadContext."""
        super().__init__(estimates)
        self._translation = translation
        self._n_prompt = 0  # tokens of the prompt, in the draft's vocabulary
        self.cache = cache
        self._context = cache.context
        self._is_head = is_head
        self._drafter: Drafter | None = None  # between begin() and end()
        self._thread: DraftThread | None = None  # in schedule async
        self._concurrent = (0, 0)  # threads of both models beside that one
        self._interrupted = False  # in this text: no new thread may be started
        self._probed: Probe | None = None  # what a probe has shown, until it is proposed
        self._looked_up = set[int]()  # positions of this text's tokens that the lookup found

    threads: ThreadConfig  # that may be used now: set before begin(), and when the number of free cores changes

    @property
    def n_target_threads(self) -> int:
        """Threads of the target beside this draft."""
        return self.threads.target if self._thread is None else self._concurrent[0]

    def is_single(self, sequence: int) -> bool:
        """Whether, of several texts, it can have the one in this `sequence` of the target, and no other one beside it.

        A head reads the hidden rows of sequence 0. See JointDraft for a draft whose context has room for several texts.
        """
        return sequence == 0 if self._is_head else getattr(self._context, "n_texts", 1) < 2

    def n_unread(self, n_text: int) -> int:
        """About how many tokens of a text of `n_text` it has to read before it drafts. A head skips older ones."""
        n = n_text - self._context.n_past
        return min(n, 2 * DEFAULT.horizon) if self._is_head else n

    def begin(self, text: RunningText) -> None:
        """See Proposer. A draft that shares no device with the target starts during the target's prefill.

        Except for a head, which needs the hidden rows of the prompt.
        """
        super().begin(text)
        self._interrupted, self._probed = False, None
        self._looked_up.clear()
        try:
            self._drafter = self._new_drafter(text)
        except Exception as error:  # whatever it is, the text goes on
            self._fail(error)
            return
        if self.threads.separate_devices and self.estimates.schedule is Schedule.ASYNC and not self._is_head:
            self._start_thread()

    def _new_drafter(self, text: RunningText) -> Drafter:
        context, recorder, tokens = self._context, text.recorder, self._sequence.accepted
        recorder.lost_to_translation = 0
        if self._translation is None:
            recorder.vocabulary, self._n_prompt = SHARED, text.n_prompt
            self.cache.begin(tokens)
            of_head = BlockDrafter if isinstance(context, BlockContext) else HeadDrafter
            kind = of_head if self._is_head else PreparingDrafter if context.n_branches else Drafter
            return kind(context, self._queue, text.sampler, text.n_vocab, recorder, tokens)
        recorder.vocabulary = TRANSLATED
        tokens, translator = self._translation.begin(tokens)
        side = TranslatedTarget(
            self._queue, translator, recorder, tentative=lambda: self.estimates.schedule is Schedule.SYNC
        )
        self._n_prompt = len(tokens)
        self.cache.begin(tokens)
        sampler = self._translation.sampler(ends=not text.banned)
        return Drafter(context, side, sampler, context.n_vocab, recorder, tokens)

    def commit(self, results: Sequence[Result]) -> None:
        result = results[0]
        if result.is_looked_up:
            n = len(self._sequence.accepted)
            self._looked_up.update(range(n, n + len(result.tokens) - 1))
        super().commit(results)
        is_needed = self.estimates.reads_prompt and not self.estimates.has_ended
        if not result.is_usual and self._is_head and self._thread is None and is_needed:
            self._ask(self._read)

    def end(self) -> None:
        thread = self._thread
        self._stop_thread()
        if thread is not None and thread.error is not None:
            self._fail(thread.error)
        if self._drafter is not None:
            self.cache.end(self._drafter.end())
            self._drafter = None

    def interrupt(self) -> None:
        self._interrupted = True
        self._queue.close()
        self._context.abort()

    def propose(self, texts: Sequence[RunningText]) -> Proposal:
        """See Proposer. Follows the schedule first."""
        estimates = self.estimates
        if texts[0].n_fresh > 1 or estimates.has_ended:
            return Proposal(draft=estimates.name)
        if self._thread is not None and self._thread.has_ended:
            self._fail(self._thread.error)
        if estimates.schedule is not Schedule.ASYNC:
            self._stop_thread()
            if n := estimates.n_probe:
                self._ask(partial(self._probe, n))
                found, self._probed = self._probed, None
                return Proposal(next_s=estimates.next_s, draft=estimates.name, probe=found)
        elif not estimates.has_ended:
            if self._concurrent != self.threads.concurrent:
                self._stop_thread()  # only the thread that decodes may change its number of threads
            self._start_thread()
        return super().propose(texts)

    def wait(self, seconds: float, expected: Sequence[Candidate] = ()) -> None:
        if self.estimates.schedule is not Schedule.SYNC:
            super().wait(seconds)
            return
        if self._translation is not None or self._is_head or self._context.n_rollback is not None:
            expected = ()
        before = [candidate.token for candidate in self._sequence.pending]
        # A character may take several tokens of a draft with another vocabulary.
        for _ in range(1 if self._translation is None else _MAX_PER_CHARACTER):
            self._ask(partial(self._draft_one, [one.token for one in expected]))
            if self.estimates.has_ended or [one.token for one in self._sequence.pending] != before:
                return
        self._in_vain = True

    def _next_s(self, state: State) -> float:
        if self.estimates.schedule is not Schedule.SYNC:
            return super()._next_s(state)
        is_done = isinstance(self._drafter, BlockDrafter) and self._drafter.drafted_at == len(self._sequence.accepted)
        return math.inf if is_done else self.estimates.next_s

    def _order(self, *, is_useless: bool) -> None:
        if is_useless:
            self._context.cancel()

    def _learn_drafted(self, drafted: Drafted) -> None:
        # The time of a token drafted during a change of schedule is not representative.
        if (self._thread is not None) == (self.estimates.schedule is Schedule.ASYNC):
            super()._learn_drafted(drafted)

    def _draft_one(self, expected: Sequence[int], drafter: Drafter) -> None:
        if isinstance(drafter, BlockDrafter):
            drafter.n_block = self.estimates.n_block
        if not drafter.step(expected):
            self._fail(None)

    def _read(self, drafter: Drafter) -> None:
        assert isinstance(drafter, HeadDrafter)
        n, seconds = drafter.read()
        self.estimates.learn_draft(n if n > self.estimates.block else 0, seconds)  # few are not taken for a block

    def _probe(self, n_tokens: int, drafter: Drafter) -> None:
        scores, n_decoded, seconds, whole = drafter.probe(n_tokens, self._n_prompt)
        if self._translation is None:  # otherwise the positions are others
            first = len(self._sequence.accepted) - len(scores)
            scores = [score for i, score in enumerate(scores, first) if i not in self._looked_up]
        self._probed = Probe(scores, n_decoded, seconds, whole)

    def _ask(self, act: Callable[[Drafter], None]) -> None:
        """Run the draft on this thread. If it fails, the target continues without it."""
        assert self._drafter is not None
        n_most = self.threads.target if self.estimates.in_turns else max(self.threads.draft)
        self._context.set_threads(min(self.estimates.n_threads, n_most), self.threads.target)
        try:
            act(self._drafter)
        except DecodeAborted:
            raise  # the generation was interrupted
        except Exception as error:  # whatever it is, the generation continues
            self._fail(error)

    def _fail(self, error: BaseException | None) -> None:
        """Draft no more for this text, because of `error` or because the draft cannot continue it (None)."""
        self._stop_thread()
        self.estimates.has_ended = True
        if error is not None:
            self._metrics.draft_error = str(error) or type(error).__name__
            log.warning("the draft failed (%s): the target continues alone", self._metrics.draft_error, exc_info=error)

    def _start_thread(self) -> None:
        if self._thread is None and not self._interrupted:
            assert self._drafter is not None
            self._concurrent = self.threads.concurrent
            n = self._concurrent[1]
            self._context.set_threads(n, n)
            self._queue.open()
            thread = DraftThread(self._drafter, self._queue, self.threads.draft_cores)
            try:
                thread.start()
            except RuntimeError as error:  # the system starts no more threads
                self._fail(error)
            else:
                self._thread = thread

    def _stop_thread(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._look()
            self._thread = None
