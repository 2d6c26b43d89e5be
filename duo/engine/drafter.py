"""Drafter: drafts one token at a time, on whatever thread calls it. DraftThread: calls it beside the target."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass
from typing import NamedTuple, Protocol

from duo.config.model_config import ROWS
from duo.engine.cores import pin
from duo.engine.decoder import Decoder, decode_all
from duo.engine.recorder import Recorder
from duo.engine.statistics import Event
from duo.errors import DecodeAborted
from duo.speculation.acceptance import Lookahead
from duo.speculation.constants import DEFAULT
from duo.speculation.sampling import CandidateSampler
from duo.speculation.types import Candidate, Logits, Outcome, Probe, common_prefix


class DraftUpdate(NamedTuple):
    """What a draft must know before a token."""

    epoch: int
    tokens: list[int]  # accepted since the last call
    n_replaced: int = 0  # of the tokens told earlier, as many of the last are replaced by these
    # From logits `[n_vocab]` before the last token, and that token, to one that begins alike and is more likely. None:
    # it must not be replaced.
    longer: Callable[[Logits, int], Candidate | None] | None = None
    lookahead: Lookahead = Lookahead()
    n_verified: int = 0  # tokens in the text if all candidates that are being verified are accepted; 0: none are
    may_draft: bool = True  # whether it may continue its chain
    chain: Sequence[Candidate] = ()  # the pending candidates, if outcomes may be prepared


class TargetSide(Protocol):
    """The draft's view of its target: a CandidateQueue or a RemoteTarget, perhaps behind a TranslatedTarget."""

    def begin(self) -> DraftUpdate:
        """The draft begins a token."""

    def publish(self, epoch: int, position: int, candidate: Candidate, n_tokens: int, seconds: float) -> bool:
        """Offer a token, for which `n_tokens` (0: not representative) took `seconds`. False if it is of no use."""


@dataclass(eq=False)
class Drafter:
    """Continues the accepted tokens in the draft's context and publishes each token at once.

    When the context is full, it is cleared and continued from the last half of the text. `_tokens` is the text
    as the draft expects it: the accepted tokens it has seen, then its own. The last one has not been decoded yet.
    """

    context: Decoder
    queue: TargetSide
    sampler: CandidateSampler
    n_vocab: int  # to which logits are cut: the target's vocabulary, or the draft's if that is another one
    metrics: Recorder
    text: InitVar[Sequence[int]] = ()  # of which the context's cache holds the first tokens

    def __post_init__(self, text: Sequence[int]) -> None:
        self._now = self.metrics.clock.now
        self._tokens: list[int] = list(text[: self.context.n_past])
        self._first = 0  # index of the first token in the cache: above 0 if the text exceeds the draft's context
        self._n_seen = 0  # accepted tokens at the start of _tokens
        self._update = DraftUpdate(0, [])

    def end(self) -> list[int]:
        """The text has ended. Returns the tokens in the cache; none if it does not hold the text's beginning."""
        return self._tokens[: self.context.n_past] if not self._first else []

    def step(self, expected: Sequence[int] = ()) -> bool:
        """Draft one token, or more where the `expected` ones are what is drafted: they are decoded at once.

        False: the text has a token outside the draft's vocabulary. Raises what the decode raises.
        """
        start = self._now()
        self._reconcile()
        return self._draft_token(start, expected)

    def _draft_token(self, start: float, expected: Sequence[int] = ()) -> bool:
        position, longer = len(self._tokens), self._update.longer
        if position - self._first > self.context.n_ctx:
            self._first = position - max(1, self.context.n_ctx // 2)
            self.context.rollback(0)
        # The logits of the last token are needed: if it is in the cache already, it is decoded again.
        n_rows = 2 if longer is not None and position - self._first > 1 else 1
        self.context.rollback(min(self.context.n_past, position - n_rows - self._first))
        fresh = self._tokens[self._first + self.context.n_past :]
        if max(fresh) >= self.context.n_vocab:
            return False
        n_room = min(self.context.n_ctx - position + self._first, self.context.n_batch - len(fresh), ROWS - 1)
        expected = expected[: max(0, n_room)]
        if expected and len(fresh) < DEFAULT.some and max(expected) < self.context.n_vocab:
            return self._draft_expected(start, fresh, expected)
        logits = decode_all(self.context, fresh, n_rows)[:, : self.n_vocab]
        candidate = None
        if longer is not None and len(logits) == 2 and (candidate := longer(logits[0], self._tokens[-1])):
            position -= 1  # it replaces the last token
            self._keep(position)
            self._n_seen -= 1
        if candidate is None:
            candidate = self._guess(logits[-1], position)
        end = self._now()
        # A token that is refused changes nothing else: the next step reconciles.
        n_timed = 0 if self.context.was_first else self._n_timed(len(fresh), position)
        if self.queue.publish(self._update.epoch, position, candidate, n_timed, end - start):
            self._tokens.append(candidate.token)
        self.metrics.drafted(start, end, len(fresh))
        return True

    def _draft_expected(self, start: float, fresh: Sequence[int], expected: Sequence[int]) -> bool:
        """Draft as many tokens as are `expected` in succession, and one more, in one decode."""
        rows = self.context.decode([*fresh, *expected], len(expected) + 1)[:, : self.n_vocab]
        n_decoded, decode_s = len(fresh) + len(expected), self._now() - start
        self.metrics.drafted(start, start + decode_s, n_decoded)
        for logits, next_one in zip(rows, [*expected, -1], strict=True):
            position = len(self._tokens)
            candidate = self._guess(logits, position)
            n_timed = 0 if self.context.was_first else n_decoded
            if not self.queue.publish(self._update.epoch, position, candidate, n_timed, decode_s):
                break
            self._tokens.append(candidate.token)
            n_decoded = 0
            if candidate.token != next_one:
                break
        self.context.rollback(min(self.context.n_past, len(self._tokens) - 1 - self._first))
        return True

    def probe(self, n_tokens: int, n_prompt: int) -> Probe:
        """Decode what is new of the text in one batch and compare it with what would have been drafted.

        If more than `n_tokens` are new, only the last `n_tokens` are decoded, without context, and their second half is
        scored; the cache is then empty. At most the last 23 are scored. The prompt (the first `n_prompt` tokens) is not
        scored, and nothing is decoded while drafted tokens await verification. Raises what the decode raises.
        """
        start = self._now()
        self._reconcile()
        context, n_text = self.context, len(self._tokens)
        n_read = min(n_tokens, context.n_batch, context.n_ctx, n_text)
        whole = n_text - self._first - context.n_past <= n_read and n_text - self._first <= context.n_ctx
        text = self._tokens[self._first + context.n_past if whole else -n_read :]
        n = min(len(text) - 1 if whole else len(text) // 2, n_text - n_prompt, DEFAULT.probe_tokens - 1)
        if n_text != self._n_seen or n <= 0 or max(text) >= context.n_vocab:
            return Probe([], 0, 0.0, True)
        if not whole:
            context.rollback(0)
        rows = context.decode(text, n + 1)[:-1, : self.n_vocab]
        scores = []
        for position, logits in enumerate(rows, n_text - n):
            candidate = self.sampler.judge(logits, position, self._recent(position))
            scores.append((candidate.confidence, candidate.token == self._tokens[position]))
        if not whole:
            context.rollback(0)
        end = self._now()
        self.metrics.events.append(Event("draft", "probe", start, end, len(text)))
        return Probe(scores, len(text), 0.0 if context.was_first else end - start, whole)

    def _n_timed(self, n_fresh: int, position: int) -> int:  # noqa: ARG002 - see HeadDrafter
        """As a decode of how many tokens the time is learned of one of `n_fresh`."""
        return n_fresh

    def _guess(self, logits: Logits, position: int) -> Candidate:
        return self.sampler.candidate(logits, position, self._recent(position))

    def _recent(self, position: int, branch: Sequence[int] = ()) -> Sequence[int]:
        """The tokens before `position` that a choice depends on; the last ones are a `branch`, if there is one."""
        if not (n := self.sampler.n_recent):
            return ()
        return [*self._tokens[max(0, position - n) : position - len(branch)], *branch][-n:]

    def _reconcile(self) -> None:
        """Roll back to the last token that agrees with the target's text, and append the target's new tokens."""
        before, self._update = self._update.epoch, self.queue.begin()
        epoch, fresh = self._update.epoch, self._update.tokens
        self._n_seen -= self._update.n_replaced
        n_agreed = common_prefix(fresh, self._tokens[self._n_seen :])
        is_broken = epoch != before
        if n_agreed < len(fresh) and self._adopt(Outcome(self._n_seen + n_agreed, fresh[n_agreed])):
            is_broken = epoch != before + 1
            n_agreed = common_prefix(fresh, self._tokens[self._n_seen :])
        if is_broken or n_agreed < len(fresh):
            self._keep(self._n_seen + n_agreed)
            self._tokens += fresh[n_agreed:]
        self._n_seen += len(fresh)

    def _adopt(self, outcome: Outcome) -> bool:  # noqa: ARG002 - see PreparingDrafter
        """Continue with what was prepared for this outcome, which has come true. False if nothing was."""
        return False

    def _keep(self, n: int) -> None:
        """Drop all but the first `n` tokens."""
        del self._tokens[n:]
        if n <= self._first:
            self._first = max(0, n - self.context.n_ctx // 2)
            self.context.rollback(0)
        self.context.rollback(min(self.context.n_past, max(0, n - self._first)))


class QueueSide(Protocol):
    """When a draft's thread may work: a CandidateQueue, or on a remote machine its substitute, RemoteTarget."""

    def close(self) -> None:
        """Accept no more candidates, and wake both sides. A second call does nothing."""

    def wait_for_room(self) -> bool:
        """Wait until the draft may continue. False once this is closed."""


@dataclass(eq=False)
class DraftThread:
    """Runs `drafter` on its own thread, from start() to stop().

    If the thread ends earlier, it closes the queue and sets `has_ended`; `error` is its exception, or None if the
    drafter can draft no more for this text.
    """

    drafter: Drafter
    queue: QueueSide
    cores: frozenset[int] | None = None  # to pin the thread to
    on_end: Callable[[], None] = lambda: None  # called if the thread ends early

    def __post_init__(self) -> None:
        self.error: BaseException | None = None
        self.has_ended = False
        self._thread = self.drafter.metrics.clock.thread(self._run, "duo-draft")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Abort the current decode and join the thread."""
        self.queue.close()
        self.drafter.context.abort()
        self._thread.join()
        self.drafter.context.resume()

    def _run(self) -> None:
        try:
            pin(self.cores)
            while self.queue.wait_for_room():
                with suppress(DecodeAborted):  # the target has contradicted this token: continue from the new text
                    if not self.drafter.step():
                        break
            else:
                return
        except BaseException as error:  # handled by the owner of the thread
            self.error = error
        self.has_ended = True
        self.queue.close()
        self.on_end()
