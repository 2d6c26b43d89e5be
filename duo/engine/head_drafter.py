"""HeadDrafter: drafts with an EAGLE-3 head or an MTP layer, which reads the hidden rows of the target."""

from duo.engine.decoder import decode_all
from duo.engine.drafter import Drafter
from duo.llama.heads import HeadContext
from duo.speculation.acceptance import at_depth
from duo.speculation.constants import DEFAULT
from duo.speculation.types import Candidate, Logits, Probe


class HeadDrafter(Drafter):
    """A Drafter that tells its context which tokens are accepted, and the draft's estimates how deep a candidate is.

    The depth of a candidate is the number of rows of the head's own that it builds on, one from another, since the last
    row of the target.
    """

    context: HeadContext

    def _reconcile(self) -> None:
        super()._reconcile()
        self.context.follow(self._n_seen)
        context = self.context
        oldest = max(self._n_seen - 2 * DEFAULT.horizon, context.first_known)
        if context.n_past < oldest < self._n_seen:
            context.skip(oldest - context.n_past)

    def _guess(self, logits: Logits, position: int) -> Candidate:
        candidate = super()._guess(logits, position)
        return candidate._replace(confidence=at_depth(candidate.confidence, self.context.depth))

    def _n_timed(self, n_fresh: int, position: int) -> int:
        # The first pass of a round reads again what was accepted, with the encoder: it counts as one of two tokens.
        if not self.context.can_score:
            return 1  # all that it decodes
        return n_fresh if position > self._n_seen or n_fresh >= DEFAULT.some else 2

    def read(self) -> tuple[int, float]:
        """Decode what is new of the text, except for its last token.

        Returns the number of tokens (0: too few to learn from), and the seconds.
        """
        start = self._now()
        self._reconcile()
        n = self._catch_up(1)
        return n if n >= DEFAULT.some else 0, self._now() - start

    def _catch_up(self, n_left: int) -> int:
        """Decode what is new of the text except for its last `n_left` tokens. Returns how many."""
        if fresh := self._tokens[self.context.n_past : -n_left]:
            decode_all(self.context, fresh, 0)
        return len(fresh)

    def probe(self, n_tokens: int, n_prompt: int) -> Probe:
        """See Drafter. The head always reads all that is new, since its rows belong to positions."""
        if not self.context.can_score:
            return Probe([], 0, 0.0, whole=True)
        n_tokens = min(n_tokens, DEFAULT.probe_tokens, self.context.n_batch)
        start = self._now()
        self._reconcile()
        n_earlier = self._catch_up(n_tokens)
        read_s = self._now() - start
        found = super().probe(n_tokens, n_prompt)
        return found._replace(n_tokens=found.n_tokens + n_earlier, seconds=found.seconds + read_s)
