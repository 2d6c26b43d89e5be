"""BlockDrafter: drafts with DFlash, DSpark or DFlash2, all candidates of a block in one decode."""

from collections.abc import Sequence

from duo.engine.head_drafter import HeadDrafter
from duo.llama.block import BlockContext
from duo.speculation.acceptance import N_DEPTHS, at_depth
from duo.speculation.constants import DEFAULT
from duo.speculation.types import Candidate, Logits, Probe


class BlockDrafter(HeadDrafter):
    """A step makes the next `n_block` candidates, which replace what is pending. Their depth is the place in it."""

    context: BlockContext
    n_block = 1
    drafted_at = -1  # accepted tokens when the last block was made

    def _draft_token(self, start: float, expected: Sequence[int] = ()) -> bool:  # noqa: ARG002 - those of others
        n_seen = self._n_seen
        del self._tokens[n_seen:]
        self.drafted_at = n_seen
        if self._tokens[-1] >= self.context.n_vocab:
            return False
        n_read = self._catch_up(1)
        block = self._block(n_seen, min(self.n_block, self.context.block.n_most))
        end = self._now()
        n_timed = 0 if self.context.was_first or n_read >= DEFAULT.some else len(block)
        for position, candidate in enumerate(block, n_seen):
            if not self.queue.publish(self._update.epoch, position, candidate, n_timed, end - start):
                break
            self._tokens.append(candidate.token)
            n_timed = 0
        for i in range(len(block)):
            self.metrics.drafted(end if i else start, end, 1)
        return True

    def _block(self, position: int, n: int) -> list[Candidate]:
        """`n` candidates from `position` on, all tokens before which are read, but for the last."""
        found = list[Candidate]()
        recent = list(self._recent(position))

        def choose(logits: Logits, gap: float | None) -> int:
            logits = logits[: self.n_vocab]
            candidate = self.sampler.candidate(logits, position + len(found), recent)
            confidence = candidate.confidence if gap is None else gap
            found.append(candidate._replace(confidence=at_depth(confidence, len(found))))
            if recent:
                recent[:] = [*recent[1:], candidate.token]
            return candidate.token

        self.context.draft(self._tokens[position - 1], n, choose)
        return found

    def _catch_up(self, n_left: int) -> int:  # noqa: ARG002 - the last token of a text has no row
        return self.context.inject()

    def probe(self, n_tokens: int, n_prompt: int) -> Probe:
        """See Drafter: a few short blocks, spread over the last tokens, are compared with the text."""
        start = self._now()
        self._reconcile()
        n_text, scores, context = len(self._tokens), list[tuple[float, bool]](), self.context
        oldest = max(context.n_past - 2 * DEFAULT.horizon, context.first_known + 1, 1)  # whose hidden rows are there
        position = max(n_text - min(n_tokens, DEFAULT.probe_tokens), n_prompt, oldest)
        if n_text != self._n_seen or max(self._tokens[position - 1 :]) >= context.n_vocab:
            return Probe([], 0, 0.0, True)
        while position < n_text:
            context.rollback(min(context.n_past, position - 1))
            context.follow(position)
            n_right = 0
            for candidate in self._block(position, min(N_DEPTHS, n_text - position, context.block.n_most)):
                is_right = candidate.token == self._tokens[position + n_right]
                scores.append((candidate.confidence, is_right))
                if not is_right:
                    break
                n_right += 1
            position += max(n_right + 1, n_tokens // DEFAULT.few)
        context.follow(n_text)
        context.inject()
        return Probe(scores, len(scores), self._now() - start, whole=True)
