"""Generation: one text from a target and, if there is one, a draft that runs beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from duo.config import ThreadConfig
from duo.engine.cores import pin
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter
from duo.engine.drafting import Drafting
from duo.engine.helpers import Helpers
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.engine.target import generate
from duo.engine.text import GRAMMAR_END, INTERRUPTED, Ending
from duo.errors import DecodeAborted, GrammarError
from duo.spec.policy import Policy
from duo.spec.sampling import Guesser
from duo.spec.session import Session
from duo.spec.types import Step
from duo.spec.verify import Verifier


@dataclass(slots=True)
class Generation:
    """All that one generation needs. run() works on the calling thread and joins the draft's before it returns."""

    target: Decoder
    draft: Decoder | None
    prompt: Sequence[int]
    verifier: Verifier
    guesser: Guesser
    ending: Ending
    policy: Policy
    threads: ThreadConfig
    metrics: Metrics
    on_prompt: Callable[[int], None] = lambda _: None  # told how many tokens of a long prompt are done
    helpers: Helpers | None = None  # drafts on other machines
    tokens: list[int] = field(default_factory=list)  # the prompt and the text, once it has ended
    draft_tokens: list[int] = field(default_factory=list)  # what the local draft's cache holds then
    used_policy: Policy | None = None  # of the last draft that took part

    def run(self, put: Callable[[Step], None], stop: threading.Event) -> None:
        """Generate until the ending, or until `stop` is set; every step goes to `put`.

        When the draft dies, `metrics.draft_error` says of what, and the text goes on without it. Raises DecodeError
        if the target fails.
        """
        pin(self.threads.cores)
        self.policy.begin(len(self.prompt), self.ending.n_room)
        queue = CandidateQueue(
            Session(self.prompt, self.target.n_vocab, judges_all=not self.policy.in_order),
            self.policy,
            has_draft=self.draft is not None,
            cancel=self.draft.cancel if self.draft is not None else lambda: None,
            watch=self.metrics.pending,
        )
        if self.draft is None:
            self.policy.stop_drafting()
        drafter = self._drafter(queue)
        drafting = Drafting(self.target, self.draft, drafter, queue, self.threads, self.helpers)
        try:
            with self._help(queue), drafting:
                self._write(queue, drafting, put, stop)
        finally:
            self.tokens = queue.accepted_from(0)
            self.draft_tokens = drafter.cached if drafter is not None else []
            self.used_policy = drafting.policy
        self._look_after(drafting)
        self.metrics.stop = self.ending.reason or INTERRUPTED
        if rest := self.ending.finish():
            put(Step((), 0, (rest,)))

    def _write(
        self, queue: CandidateQueue, drafting: Drafting, put: Callable[[Step], None], stop: threading.Event
    ) -> None:
        steps = generate(self.target, queue, drafting, self.verifier, self.ending, self.metrics, self.on_prompt)
        try:
            for step in steps:
                self._look_after(drafting)
                put(step)
                if stop.is_set():
                    break
        except DecodeAborted:
            pass  # by abort(), because of an interruption
        except GrammarError:
            self.ending.reason = GRAMMAR_END

    @contextmanager
    def _help(self, queue: CandidateQueue) -> Iterator[None]:
        """The drafts on other machines take part from here to the end of the block."""
        if self.helpers is None:
            yield
            return
        self.helpers.begin(queue, self.metrics)
        try:
            yield
        finally:
            self.helpers.end()

    def interrupt(self) -> None:
        """Let the generation end soon, from any thread or signal handler: a long prompt is not read to its end."""
        if self.draft is not None:
            self.draft.abort()
        if not self.metrics.steps:
            self.target.abort()

    def _look_after(self, drafting: Drafting) -> None:
        """Take note if the draft has died."""
        if drafting.error is not None:
            self.metrics.draft_error = str(drafting.error) or type(drafting.error).__name__

    def _drafter(self, queue: CandidateQueue) -> Drafter | None:
        if self.draft is None:
            return None
        return Drafter(self.draft, queue, self.guesser, self.target.n_vocab, self.metrics, self.prompt)
