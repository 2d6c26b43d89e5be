"""Drafter: guesses one token at a time, and knows no threads."""

from __future__ import annotations

import time
from itertools import takewhile

from duo.engine.decoder import Decoder, decode_all
from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue
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
        logits = decode_all(self._draft, fresh)[0, : self._n_vocab]
        token = self._sampler.sample(logits, position)
        margin = confidence(logits, token)
        end = time.perf_counter()
        # What is known of the text stays, whether or not this guess is refused: _reconcile looks what has changed.
        if self._queue.publish(self._epoch, position, (token, margin), len(fresh), end - start):
            self._tokens.append(token)
        self._metrics.drafted(start, end, len(fresh))
        return True

    def probe(self, n_tokens: int) -> None:
        """Read the last tokens of the text in one batch and tell the queue how well they would have been guessed.

        At most `n_tokens`, without what stands before them, and of these the second half is judged. The draft's cache
        is empty afterwards. Raises whatever the decode raises.
        """
        start = time.perf_counter()
        text = self._queue.accepted_from(0)[-min(n_tokens, self._draft.n_batch, self._draft.n_ctx) - 1 :]
        self._draft.rollback(0)
        if max(text) >= self._draft.n_vocab:
            return
        n_judged = len(text) // 2
        scores = []
        rows = self._draft.decode(text[:-1], n_judged)[:, : self._n_vocab]
        for i, (logits, right) in enumerate(zip(rows, text[-n_judged:], strict=True)):
            token = self._sampler.sample(logits, i)
            scores.append((confidence(logits, token), token == right))
        self._draft.rollback(0)
        end = time.perf_counter()
        self._queue.learn_probe(scores, len(text) - 1, end - start)
        self._metrics.drafted(start, end, len(text) - 1)

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
