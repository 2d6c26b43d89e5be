"""JointDraft: candidates of the local draft for texts that are written together, in turns with the target.

A text has the sequence of the draft's cache with the number of its own in the target's. That holds a beginning of it,
which is read in pieces, and only where the draft pays. One decode makes the next candidates of several texts. The draft
is idle for texts with rejection sampling, and for those for which it may not draft in schedule sync.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from duo.config import MAX_CANDIDATES
from duo.engine.cores import within
from duo.engine.decoder import Decoder, Shared
from duo.engine.kv_store import LEAST
from duo.speculation.constants import DEFAULT
from duo.speculation.controller import REJECTION
from duo.speculation.modes import SYNC
from duo.speculation.types import Proposal, common_prefix

if TYPE_CHECKING:
    from duo.engine.local_draft import LocalDraft
    from duo.engine.model_pair import ModelPair
    from duo.engine.together import Member
    from duo.speculation.joint import JointDecodes

log = logging.getLogger("duo.engine")

_FOLLOWS = 2  # tokens that a text mostly has more than the draft has read


class JointDraft:
    """The draft of the texts that are written together. It is idle until begin(), and once it has failed."""

    _draft: LocalDraft  # if it is not idle

    def __init__(self, pair: ModelPair, costs: JointDecodes) -> None:
        self._pair, self._costs, self.is_idle = pair, costs, True

    def begin(self) -> None:
        """Texts are written together from now on."""
        if (draft := self._pair.draft) is not None:
            self._draft, self.is_idle = draft, getattr(draft.cache.context, "n_texts", 1) < 2

    @property
    def _context(self) -> Shared:
        return cast("Shared", self._draft.cache.context)

    def _sequence(self, member: Member) -> Decoder:
        return cast("Decoder", self._context.text(member.sequence)) if member.sequence else self._context

    def _lag(self, member: Member) -> int:
        """Tokens of a text that the draft has not read."""
        return len(member.text.tokens) - self._sequence(member).n_past

    def _forget_rejected(self, member: Member) -> None:
        """A text has another token after those of its candidates that were right; or they were not verified."""
        sequence = self._sequence(member)
        sequence.rollback(min(sequence.n_past, len(member.text.tokens) - 1))

    def add(self, member: Member) -> None:
        """Draft for a text, too, if it may."""
        if self.is_idle:
            return
        text, cache, estimates = member.text, self._draft.cache, self._draft.estimates
        if not member.sequence:
            cache.begin(text.tokens)
        own = (draft.estimates for draft in member.generation.sources.drafts if draft.cache is cache)
        limits = next((one for one in own if SYNC in one.schedules), None)
        if limits is not None and text.mode != REJECTION:
            estimates.begin(text.mode, len(text.tokens))
            member.acceptance, member.n_drafted = estimates.acceptance, limits.n_max

    def remove(self, member: Member) -> None:
        """A text is not written any more."""
        if not self.is_idle:
            self._sequence(member).rollback(0)

    def settle(self, member: Member) -> None:
        """One text is left: it is now the text of the context."""
        if not self.is_idle:
            self._forget_rejected(member)
            if member.sequence:
                self._context.adopt(member.sequence)
            self._draft.cache.end(member.text.tokens, member.text.n_prompt)
            self._draft.cache.owner = member.request.owner

    def propose(
        self, members: Sequence[Member], proposals: Sequence[Proposal], numbers: Sequence[int], n_most: int
    ) -> list[Proposal]:
        """The draft's candidates for `members` where these pay; the other `proposals` are the lookup's, as they are.

        Of those, `numbers` would be verified. There is room for `n_most` candidates in all.
        """
        for one in members:
            one.chain, one.chances = [], []
        try:
            if not self.is_idle:
                self._make(members, proposals, numbers, n_most)
        except Exception as error:  # whatever it is, the texts go on
            self._fail(members, error)
        return [
            Proposal(one.chain, chances=one.chances, draft=self._draft.estimates.name) if one.chain else proposal
            for one, proposal in zip(members, proposals, strict=True)
        ]

    def _make(
        self, members: Sequence[Member], proposals: Sequence[Proposal], numbers: Sequence[int], n_most: int
    ) -> None:
        """The next candidates, as long as they are worth the time."""
        found: list[Member] = []
        n_rows, context = len(members), self._context
        for one, proposal, n in zip(members, proposals, numbers, strict=True):
            self._forget_rejected(one)
            if one.n_idle > DEFAULT.horizon:  # perhaps the draft was only unlucky: what earlier texts say counts again
                one.acceptance.begin()
                one.n_idle = 0
            one.n_more = min(one.n_drafted, one.text.n_room - 1, context.n_ctx - len(one.text.tokens))
            if one.n_more < 1 or (n and proposal.chances[0][0] >= one.acceptance.mean):
                n_rows += n
            else:
                found.append(one)
        n_most -= n_rows - len(members)
        n_unread = min(DEFAULT.some, context.n_batch // max(1, len(members)))  # of each text, in one decode
        n_free = context.n_cells - sum(self._sequence(one).n_past for one in members)
        n_free -= len(members) * (DEFAULT.some + max((one.n_more for one in found), default=0))
        n, depth, gained_s = self._worth(found, len(members), n_rows, n_most)
        if n_free < 0 or not n or gained_s <= DEFAULT.least_gain * (decode_s := self._costs.curve(n_rows)[-1]):
            return
        usable = within(self._pair.threads, self._pair.cores.limit)
        context.set_threads(min(self._draft.estimates.n_threads, max(usable.draft)), usable.target)
        found = [one for one in found if max(one.text.tokens[-self._lag(one) :]) < context.n_vocab]
        late = min((one for one in found if n_unread < self._lag(one) <= n_free), key=self._lag, default=None)
        if late is not None:
            self._read(late, members, decode_s, gained_s / n / (depth + 1))
        found = [one for one in found if self._lag(one) <= n_unread]
        while n and found:
            n_taken = sum(len(one.chain) for one in members)
            n, _, _ = self._worth(found, len(members), n_rows + n_taken, n_most - n_taken)
            self._step(found[:n])
            found = [one for one in found if one.n_more]

    def _worth(self, members: list[Member], n_texts: int, n_rows: int, n_most: int) -> tuple[int, int, float]:
        """JointDecodes.drafting() of the next candidates of these texts, which it sorts."""
        chances = {one: (math.prod(chance for chance, _ in one.chances), one.acceptance.mean) for one in members}
        members.sort(key=lambda one: -math.prod(chances[one]))
        n_read = [*accumulate(1 if one.chain else min(_FOLLOWS, self._lag(one)) for one in members)]
        seconds = self._draft.estimates.costs.alone.curve(n_read[-1] if n_read else 1)
        step_s = [(seconds[n - 1], seconds[i]) for i, n in enumerate(n_read)]
        depth = max((one.n_more for one in members), default=0)
        return self._costs.drafting(n_texts, n_rows, [chances[one] for one in members], step_s, n_most, depth)

    def _read(self, one: Member, members: Sequence[Member], most_s: float, gained_s: float) -> None:
        """Read a piece of a text, for about `most_s`, if that pays: each token that is written gains `gained_s`."""
        tokens, read_s, n_room = one.text.tokens, self._draft.estimates.costs.read_s, one.text.ending.n_room
        if min(DEFAULT.horizon, math.inf if n_room is None else n_room) * gained_s <= self._lag(one) * read_s:
            return
        if one.sequence and not self._sequence(one).n_past:  # what texts have in common is read once
            own = [each for each in members if each.request.owner == one.request.owner]
            known = [(each.text.tokens[: self._sequence(each).n_past], each.sequence) for each in own]
            n, other = max((common_prefix(read, tokens[:-1]), sequence) for read, sequence in known)
            if n >= LEAST:
                self._context.branch(one.sequence, n, other)
        n_past = self._sequence(one).n_past
        if piece := tokens[n_past:-1][: min(max(LEAST, int(most_s / read_s)), self._context.n_batch)]:
            self._decode([one], [(one.sequence, piece, 0)])

    def _step(self, members: Sequence[Member]) -> None:
        """One more candidate for each of these texts."""
        parts = list[tuple[int, Sequence[int], int]]()
        for one in members:
            n_past, n_text = self._sequence(one).n_past, len(one.text.tokens)
            drafted = [candidate.token for candidate in one.chain[max(0, n_past - n_text) :]]
            parts.append((one.sequence, [*one.text.tokens[n_past:], *drafted], 1))
        if parts:
            self._decode(members, parts)

    def _decode(self, members: Sequence[Member], parts: Sequence[tuple[int, Sequence[int], int]]) -> None:
        """Decode these parts, and draft a token from each row of logits. See DraftEstimates.learn_draft()."""
        now = members[0].request.metrics.clock.now
        start, n_read = now(), sum(len(tokens) for _, tokens, _ in parts)
        for one, rows in zip(members, self._context.decode_parts(parts), strict=True):
            text, n = one.text, one.text.sampler.n_recent
            recent = [*text.tokens[-n:], *(each.token for each in one.chain)][-n:] if n else ()
            for logits in rows:
                found = text.sampler.candidate(logits[: text.n_vocab], len(text.tokens) + len(one.chain), recent)
                one.chances.append((one.acceptance.now([found.confidence])[0], math.inf))
                one.chain.append(found)
                one.n_more -= 1
        end = now()
        for one, (_, tokens, _) in zip(members, parts, strict=True):
            one.request.metrics.drafted(start, end, len(tokens))
        if not self._context.was_first:
            is_step = parts[0][2] and n_read <= MAX_CANDIDATES
            self._draft.estimates.learn_draft(1 if is_step else n_read, end - start, n_read if is_step else 1)

    def learn(self, member: Member, n_before: int) -> None:
        """A text, which had `n_before` tokens, has more."""
        member.n_idle = 0 if member.chain else member.n_idle + len(member.text.tokens) - n_before
        for candidate, token in zip(member.chain, member.text.tokens[n_before:], strict=False):
            member.acceptance.add(candidate.confidence, candidate.token == token)
            if candidate.token != token:
                break

    def _fail(self, members: Sequence[Member], error: Exception) -> None:
        """Draft no more for these texts, nor for those that join them."""
        said = str(error) or type(error).__name__
        for one in members:
            one.request.metrics.draft_error, one.chain = said, []
        log.warning("the draft failed (%s): the texts go on without it", said, exc_info=error)
        self._context.reset()
        self._draft.cache.clear()
        self.is_idle = True
