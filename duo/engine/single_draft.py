"""SingleDraft: a draft that can have one text only, for one of those that are written together.

It is a remote draft, which runs beside the target, or, in turns with the target, a local one with another vocabulary or
a head. The text is that for which it can gain most: whose lookup finds least, of equals the first. When it ends, or no
candidate paid for DEFAULT.horizon tokens, another one is chosen; a head has that in sequence 0. The candidates compete
with those of all texts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from duo.engine.cores import within
from duo.engine.kv_store import belong
from duo.engine.local_draft import LocalDraft
from duo.speculation.constants import DEFAULT
from duo.speculation.controller import REJECTION
from duo.speculation.forecast import Forecast
from duo.speculation.modes import ALONE, ASYNC, SYNC, Mode
from duo.speculation.types import Origin, Proposal

if TYPE_CHECKING:
    from duo.engine.async_draft import AsyncDraft
    from duo.engine.model_pair import ModelPair
    from duo.engine.together import Member
    from duo.speculation.joint import JointDecodes

log = logging.getLogger("duo.engine")


class SingleDraft:
    """The draft of one of the texts that are written together."""

    def __init__(self, pair: ModelPair, costs: JointDecodes) -> None:
        self._pair, self._costs = pair, costs
        self._used: tuple[AsyncDraft, Member] | None = None  # the draft in use, and whose text it has
        self._refused: list[Member] = []  # for whose texts it cannot draft, or did not pay
        self._verified_at = 0  # tokens of the text when one of its candidates was verified

    @property
    def mode(self) -> Mode:
        """In which the draft in use drafts."""
        if self._used is None:
            return ALONE
        estimates = self._used[0].estimates
        return Mode(estimates.name, estimates.schedule)

    def end(self) -> None:
        """Draft no more for the text. A second call does nothing."""
        used, self._used = self._used, None
        if used is not None:
            draft, member = used
            member.generation.proposers.remove(draft)
            draft.end()

    def clear(self) -> None:
        """No texts are written together any more."""
        self.end()
        self._refused.clear()

    def remove(self, member: Member) -> None:
        """A text is not written any more."""
        if member in self._refused:
            self._refused.remove(member)
        if self._used is not None and member is self._used[1]:
            self.end()

    def propose(self, members: Sequence[Member], proposals: Sequence[Proposal], n_most: int) -> list[Proposal]:
        """The `proposals` for `members`, but for one of them the draft's, if that promises more tokens.

        There is room for `n_most` candidates in all.
        """
        found = list(proposals)
        try:
            self._follow(members)
            if self._used is not None and self._used[1] in members:
                at = members.index(self._used[1])
                own = self._propose(*self._used, len(members), n_most)
                found[at] = max(own, found[at], key=_promised)  # of equals the draft's, which then prepares outcomes
        except Exception as error:  # whatever it is, the texts go on
            log.warning("the draft failed (%s): the texts go on without it", error, exc_info=error)
            if self._used is not None:
                self._used[1].request.metrics.draft_error = str(error) or type(error).__name__
            self._refuse()
        return found

    def verifies(self, members: Sequence[Member], proposals: Sequence[Proposal], numbers: Sequence[int]) -> None:
        """The target verifies these `numbers` of the `proposals` for `members` now."""
        for one, proposal, n in zip(members, proposals, numbers, strict=True):
            if self._used is not None and one is self._used[1] and proposal.draft == self.mode.draft:
                self._used[0].verifies(n)
                self._verified_at = len(one.text.tokens) if n else self._verified_at

    def _refuse(self) -> None:
        """The draft cannot continue this text, or does not pay there."""
        if self._used is not None:
            self._refused.append(self._used[1])
        self.end()

    def _follow(self, members: Sequence[Member]) -> None:
        """Use the draft that can be used now, for the text that is to have it."""
        remote = self._pair.remote
        if remote is not None and self._used is None:
            remote.begin()  # of a text that it does not have yet
        connected = remote.choose() if remote is not None else None
        if connected is not None and not connected.is_set_up and self._pair.draft is not None:
            connected = None  # the local draft goes on meanwhile
        if self._used is not None:
            draft, member = self._used
            is_idle = len(member.text.tokens) - self._verified_at > DEFAULT.horizon
            if draft.estimates.has_ended or draft.is_unable or is_idle:
                self._refuse()
            elif connected is not draft and (draft.estimates.remote or connected is not None):
                self.end()
        able = [
            (one, free)
            for one in (members if self._used is None else ())
            if one not in self._refused and one.text.mode != REJECTION and (free := self._free(one, connected))
        ]
        for one, free in sorted(able, key=lambda each: _found(each[0])):
            if isinstance(free, LocalDraft):
                self._begin_in_turns(free, one)
            else:
                self._begin(free, one)
            if self._used is not None:
                break

    def _free(self, member: Member, connected: AsyncDraft | None) -> AsyncDraft | None:
        """The draft that a text may have."""
        sources = member.generation.sources
        if connected is not None and sources.remote is not None:
            return connected
        single = (each for each in sources.drafts if each.is_single(member.sequence))
        return next((each for each in single if SYNC in each.estimates.schedules), None)

    def _begin_in_turns(self, draft: LocalDraft, member: Member) -> None:
        """Draft for a text, unless all texts would have to wait until the draft has read it."""
        decode_s, read_s = self._costs.curve(1)[0], draft.estimates.costs.read_s
        if not decode_s:  # nothing is known yet
            return
        draft.threads = within(self._pair.threads, self._pair.cores.limit)
        belong([draft.cache], member.request.owner)
        self._begin(draft, member)
        if draft.n_unread(len(member.text.tokens)) * read_s > DEFAULT.few * decode_s:
            self._refuse()

    def _begin(self, draft: AsyncDraft, member: Member) -> None:
        """Draft for a text from now on."""
        text, estimates = member.text, draft.estimates
        estimates.costs.use_cores(self._pair.cores.limit)
        estimates.begin(text.mode, len(text.tokens))
        estimates.schedule, estimates.is_chosen = ASYNC if estimates.remote else SYNC, True
        self._used, self._verified_at = (draft, member), len(text.tokens)
        member.generation.proposers.insert(0, draft)  # before the lookup: the draft waits for what was verified
        draft.begin(text)

    def _propose(self, draft: AsyncDraft, member: Member, n_texts: int, n_most: int) -> Proposal:
        """The candidates for its text. A draft in turns makes further ones as long as these are worth the time."""
        estimates, text = draft.estimates, member.text
        for each in member.generation.sources.drafts:
            each.threads = within(self._pair.threads, self._pair.cores.limit)
        seconds = self._costs.curve(n_texts)[-1]
        limit = min(n_most, estimates.n_max, text.n_room - 1)
        estimates.forecast = forecast = Forecast(1 / seconds if seconds else 0.0, n_wait=limit)
        found = draft.propose([text])
        while estimates.schedule is SYNC and not estimates.has_ended and (n := len(found.candidates)) < limit:
            chance = math.prod(estimates.chances(found.candidates)), estimates.acceptance.mean
            step_s = estimates.next_s, 0.0 if estimates.block else estimates.token_s
            n_drafted, depth, _ = self._costs.drafting(n_texts, n_texts + n, [chance], [step_s], n_most - n, limit - n)
            if not n_drafted:
                break
            estimates.forecast = replace(forecast, n_wait=depth)  # of a block
            draft.wait(0.0)
            found = draft.propose([text])
            if estimates.block or len(found.candidates) <= n:
                break
        return found._replace(chances=[(chance, math.inf) for chance in estimates.chances(found.candidates)])


def _found(member: Member) -> float:
    """Tokens that the lookup brought in each of the last steps of a text: those of a draft would replace them."""
    steps = member.request.metrics.steps[-DEFAULT.horizon :]
    return sum(one.n_accepted for one in steps if one.source is Origin.LOOKUP) / max(1, len(steps))


def _promised(proposal: Proposal) -> float:
    """Tokens that the candidates bring."""
    return math.fsum(accumulate((chance for chance, _ in proposal.chances), mul))
