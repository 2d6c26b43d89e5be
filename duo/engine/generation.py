"""Generation: one text from a target and, if there is one, a draft that runs beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from duo.engine.cores import pin
from duo.engine.decoder import Decoder
from duo.engine.draft_thread import DraftThread
from duo.engine.drafter import Drafter
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.target import generate
from duo.engine.text import INTERRUPTED, Ending
from duo.errors import DecodeAborted
from duo.spec.policy import Policy
from duo.spec.sampling import Sampler
from duo.spec.session import Session
from duo.spec.types import Step


@dataclass(slots=True)
class Generation:
    """All that one generation needs. run() works on the calling thread and joins the draft's before it returns."""

    target: Decoder
    draft: Decoder | None
    prompt: Sequence[int]
    sampler: Sampler
    ending: Ending
    policy: Policy
    metrics: Metrics
    cores: frozenset[int] | None = None
    draft_cores: frozenset[int] | None = None
    on_prompt: Callable[[int], None] = lambda _: None  # told how many tokens of a long prompt are done

    def run(self, put: Callable[[Step], None], stop: threading.Event) -> None:
        """Generate until the ending, or until `stop` is set; every step goes to `put`.

        When the draft dies, `metrics.draft_error` says of what, and the text goes on without it. Raises DecodeError
        if the target fails.
        """
        pin(self.cores)
        drafting = self.draft is not None and self.policy.n_max > 0
        queue = CandidateQueue(
            Session(self.prompt, self.target.n_vocab),
            self.policy,
            drafting=drafting,
            cancel=self.draft.cancel if self.draft is not None else lambda: None,
        )
        with ExitStack() as stack:
            thread = stack.enter_context(self._draft_thread(queue)) if drafting else None
            steps = generate(self.target, queue, self.sampler, self.ending, self.metrics, self.on_prompt)
            try:
                for step in steps:
                    self._look_after(thread)
                    put(step)
                    if stop.is_set():
                        break
            except DecodeAborted:
                pass  # by abort(), because of an interruption
        self._look_after(thread)
        self.metrics.stop = self.ending.reason or INTERRUPTED
        if rest := self.ending.finish():
            put(Step((), 0, (rest,)))

    def _look_after(self, thread: DraftThread | None) -> None:
        """Take note if the draft has died."""
        if thread is not None and thread.error is not None:
            self.metrics.draft_error = str(thread.error) or type(thread.error).__name__

    def _draft_thread(self, queue: CandidateQueue) -> DraftThread:
        assert self.draft is not None
        drafter = Drafter(self.draft, queue, self.sampler, self.target.n_vocab, self.metrics)
        return DraftThread(drafter, queue, self.draft.abort, self.draft_cores)
