"""Drafter: guesses one token at a time, and knows no threads."""

from __future__ import annotations

import time
from itertools import takewhile

from duo.engine.decoder import Decoder, decode_all
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
from duo.errors import DecodeAborted
from duo.spec.sampling import Sampler, confidence


class Drafter:
    """Continues the accepted tokens in its own context and publishes each guess at once.

    `_tokens` is what it believes the text to be: the accepted tokens as far as it has seen them, then its own
    guesses. The last of them has not been decoded yet.
    """

    def __init__(self, draft: Decoder, queue: CandidateQueue, sampler: Sampler, n_vocab: int, metrics: Metrics) -> None:
        """`n_vocab` is the target's: guesses beyond it are cut."""
        self._draft = draft
        self._queue = queue
        self._sampler = sampler
        self._n_vocab = n_vocab
        self._metrics = metrics
        self._tokens: list[int] = []
        self._n_seen = 0  # accepted tokens that _tokens begins with
        self._epoch = 0

    def step(self) -> bool:
        """Draft one token. False if it cannot, now or ever again in this text.

        Its context is full, or the target has written a token that only its own, larger vocabulary has.

        Raises whatever the decode raises.
        """
        start = time.perf_counter()
        self._reconcile()
        position = len(self._tokens)
        # The last token's logits are wanted: if it was decoded before, it is decoded again.
        self._draft.rollback(min(self._draft.n_past, position - 1))
        fresh = self._tokens[self._draft.n_past :]
        if position > self._draft.n_ctx or max(fresh) >= self._draft.n_vocab:
            return False
        try:
            logits = decode_all(self._draft, fresh)[0, : self._n_vocab]
        except DecodeAborted:
            return True  # the target has written something else: look again
        token = self._sampler.sample(logits, position)
        margin = confidence(logits, token)
        end = time.perf_counter()
        # A batch that catches up says nothing about the time that one token takes.
        draft_s = end - start if len(fresh) == 1 else None
        # What is known of the text stays, whether or not this guess is refused: _reconcile looks what has changed.
        if self._queue.publish(self._epoch, position, token, margin, draft_s):
            self._tokens.append(token)
        self._metrics.drafted(start, end, len(fresh))
        return True

    def _reconcile(self) -> None:
        """Go back to the last token that agrees with the target's text, and take over what it wrote since."""
        epoch, fresh = self._queue.begin(self._n_seen)
        guessed = self._tokens[self._n_seen :]
        n_agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(fresh, guessed, strict=False)))
        if epoch != self._epoch or n_agreed < len(fresh):
            self._keep(self._n_seen + n_agreed)
            self._tokens += fresh[n_agreed:]
        self._n_seen += len(fresh)
        self._epoch = epoch

    def _keep(self, n: int) -> None:
        """Forget all but the first `n` tokens."""
        del self._tokens[n:]
        self._draft.rollback(min(self._draft.n_past, n))
