"""Drafter: guesses one token at a time, and knows no threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

from duo.engine.decoder import Decoder, decode_all
from duo.engine.metrics import Metrics
from duo.errors import DecodeAborted
from duo.spec.sampling import Guesser
from duo.spec.types import Guess


class TargetSide(Protocol):
    """What a draft knows of its target: a CandidateQueue, or what stands for one on another machine."""

    def begin(self) -> tuple[int, list[int]]:
        """The draft begins a token: the epoch, and the tokens accepted since it last asked."""
        ...

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:
        """Offer a guess, for which `n_tokens` were decoded in `seconds`. False if it is known to be of no use."""
        ...


class Probe(NamedTuple):
    """How a draft would have guessed a piece of the text, which it read in one batch."""

    scores: list[tuple[float, bool]]  # confidence of each guess, and whether it was right
    n_tokens: int  # that were read; 0: it could not
    seconds: float
    whole: bool  # whether the draft has now read all of the text


class Drafter:
    """Continues the accepted tokens in its own context and publishes each guess at once.

    When it is full it reads the last half of it again, without what stood before.

    `_tokens` is what it believes the text to be: the accepted tokens as far as it has seen them, then its own
    guesses. The last of them has not been decoded yet.
    """

    def __init__(
        self,
        draft: Decoder,
        queue: TargetSide,
        guesser: Guesser,
        n_vocab: int,
        metrics: Metrics,
        text: Sequence[int] = (),
    ) -> None:
        """`n_vocab` is the target's: guesses beyond it are cut. The draft's cache holds the beginning of `text`."""
        self._draft = draft
        self._queue = queue
        self._guesser = guesser
        self._n_vocab = n_vocab
        self._metrics = metrics
        self._tokens: list[int] = list(text[: draft.n_past])
        self._first = 0  # the token that the cache begins with: a draft of a small context sees only the last ones
        self._n_seen = 0  # accepted tokens that _tokens begins with
        self._epoch = 0

    @property
    def cached(self) -> list[int]:
        """The tokens in the draft's cache; none if it does not hold the beginning of the text."""
        return self._tokens[: self._draft.n_past] if not self._first else []

    def step(self) -> bool:
        """Draft one token. False if it cannot, now or ever again in this text.

        The target has then written a token that only its own, larger vocabulary has.

        Raises whatever the decode raises.
        """
        start = time.perf_counter()
        self._reconcile()
        position = len(self._tokens)
        if position - self._first > self._draft.n_ctx:
            self._first = position - max(1, self._draft.n_ctx // 2)
            self._draft.rollback(0)
        # The last token's logits are wanted: if it was decoded before, it is decoded again.
        self._draft.rollback(min(self._draft.n_past, position - 1 - self._first))
        fresh = self._tokens[self._first + self._draft.n_past :]
        if max(fresh) >= self._draft.n_vocab:
            return False
        try:
            logits = decode_all(self._draft, fresh)[0, : self._n_vocab]
        except DecodeAborted:
            self._metrics.detail("draft", "cancelled", start, len(fresh))
            raise
        guess = self._guesser.guess(logits, position, self._recent(position))
        end = time.perf_counter()
        # What is known of the text stays, whether or not this guess is refused: _reconcile looks what has changed.
        useful = self._queue.publish(self._epoch, position, guess, len(fresh), end - start)
        if useful:
            self._tokens.append(guess.token)
        self._metrics.drafted(start, end, len(fresh))
        self._metrics.detail("draft", "publish", end, int(useful))
        return True

    def probe(self, n_tokens: int, n_prompt: int) -> Probe:
        """Read what is new of the text in one batch and see how well it would have been guessed.

        If more than `n_tokens` are new, read only so many, without what stands before them, and judge the second half;
        the draft then has to read all again before it can go on. The prompt, the first `n_prompt` tokens, is not
        judged, and nothing is read while the draft has guesses that are still to be judged. Raises whatever the decode
        raises.
        """
        start = time.perf_counter()
        self._reconcile()
        n_text = len(self._tokens)
        n_read = min(n_tokens, self._draft.n_batch, self._draft.n_ctx, n_text)
        whole = n_text - self._first - self._draft.n_past <= n_read and n_text - self._first <= self._draft.n_ctx
        text = self._tokens[self._first + self._draft.n_past if whole else -n_read :]
        n_judged = min(len(text) - 1 if whole else len(text) // 2, n_text - n_prompt)
        scores: list[tuple[float, bool]] = []
        if n_text == self._n_seen and n_judged > 0 and max(text) < self._draft.n_vocab:
            scores = self._judge(text, n_judged, keep=whole)
        else:
            text, whole = [], True
        end = time.perf_counter()
        self._metrics.probed(start, end, len(text))
        return Probe(scores, len(text), end - start, whole)

    def _judge(self, text: Sequence[int], n: int, *, keep: bool) -> list[tuple[float, bool]]:
        """How the last `n` tokens of `text` would have been guessed; what was read stays in the cache if `keep`."""
        if not keep:
            self._draft.rollback(0)
        rows = self._draft.decode(text, n + 1)[:-1, : self._n_vocab]
        scores = []
        for position, logits in enumerate(rows, len(self._tokens) - n):
            guess = self._guesser.judge(logits, position, self._recent(position))
            scores.append((guess.confidence, guess.token == self._tokens[position]))
        if not keep:
            self._draft.rollback(0)
        return scores

    def _recent(self, position: int) -> Sequence[int]:
        n = self._guesser.n_recent
        return self._tokens[max(0, position - n) : position] if n else ()

    def _reconcile(self) -> None:
        """Go back to the last token that agrees with the target's text, and take over what it wrote since."""
        epoch, fresh = self._queue.begin()
        guessed = self._tokens[self._n_seen :]
        n_agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(fresh, guessed, strict=False)))
        if epoch != self._epoch or n_agreed < len(fresh):
            self._keep(self._n_seen + n_agreed)
            self._tokens += fresh[n_agreed:]
        self._n_seen += len(fresh)
        self._epoch = epoch

    def _keep(self, n: int) -> None:
        """Forget all but the first `n` tokens."""
        start, n_forgotten = time.perf_counter(), len(self._tokens) - n
        del self._tokens[n:]
        if n <= self._first:
            self._first = max(0, n - self._draft.n_ctx // 2)
            self._draft.rollback(0)
        self._draft.rollback(min(self._draft.n_past, max(0, n - self._first)))
        if n_forgotten:
            self._metrics.detail("draft", "rollback", start, n_forgotten)
