"""SingleDrafts: drafts that can have one text each, for those that are written together.

These are remote drafts, which run beside the target, and a local one with another vocabulary or a head, in turns with
the target, or any that may draft only beside it. The text is that for which a draft can gain most: whose lookup finds
least, of equals the first. When it ends, or no candidate paid for DEFAULT.horizon tokens, another one is chosen; a head
has that in sequence 0. The candidates compete with those of all texts.
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
from duo.speculation.modes import ALONE, ASYNC, OFF, SYNC, Mode, Schedule
from duo.speculation.types import Origin, Proposal

if TYPE_CHECKING:
    from duo.engine.async_draft import AsyncDraft
    from duo.engine.model_pair import ModelPair
    from duo.engine.together import Member
    from duo.speculation.joint import JointDecodes

log = logging.getLogger("duo.engine")


class SingleDrafts:
    """The drafts of some of the texts that are written together."""

    def __init__(self, pair: ModelPair, costs: JointDecodes) -> None:
        self._pair, self._costs = pair, costs
        self._used: dict[Member, AsyncDraft] = {}  # the drafts in use, by whose text each has
        # Texts for which a remote draft (True) or the local one (False) cannot draft, or did not pay.
        self._refused: set[tuple[Member, bool]] = set()
        self._verified_at: dict[Member, int] = {}  # tokens of the text when a candidate of its draft was verified

    def mode(self, member: Member) -> Mode:
        """In which the draft of a text drafts."""
        draft = self._used.get(member)
        return Mode(draft.estimates.name, draft.estimates.schedule) if draft is not None else ALONE

    def end(self, member: Member | None = None) -> None:
        """Draft no more for this text (default: for all). A second call does nothing."""
        for one in [*self._used] if member is None else [member]:
            if (draft := self._used.pop(one, None)) is not None:
                del self._verified_at[one]
                one.generation.proposers.remove(draft)
                draft.end()

    def end_local(self) -> None:
        """The target's sequence 0 gets another text, and the local draft's cache another owner."""
        for one in [one for one, draft in self._used.items() if not draft.estimates.remote]:
            self.end(one)

    def n_target_threads(self, n: int) -> int:
        """Threads of the target, of `n`, beside a local draft that is decoding."""
        beside = (draft.n_target_threads for draft in self._used.values() if isinstance(draft, LocalDraft))
        return min([n, *beside])

    def clear(self) -> None:
        """No texts are written together any more."""
        self.end()
        self._refused.clear()

    def remove(self, member: Member) -> None:
        """A text is not written any more."""
        self._refused -= {(member, True), (member, False)}
        self.end(member)

    def propose(self, members: Sequence[Member], proposals: Sequence[Proposal], n_most: int) -> list[Proposal]:
        """The `proposals` for `members`, but where a draft has the text the draft's, if that promises more tokens.

        There is room for `n_most` candidates in all.
        """
        found = list(proposals)
        try:
            self._follow(members)
        except Exception as error:  # whatever it is, the texts go on
            self._fail(error, *self._used)
        for at, one in enumerate(members):
            if (draft := self._used.get(one)) is not None:
                try:
                    own = self._propose(draft, one, len(members), n_most)
                except Exception as error:
                    self._fail(error, one)
                else:  # of equals the draft's, which then prepares outcomes
                    found[at] = max(own, found[at], key=_promised)
        return found

    def verifies(self, members: Sequence[Member], proposals: Sequence[Proposal], numbers: Sequence[int]) -> None:
        """The target verifies these `numbers` of the `proposals` for `members` now."""
        for one, proposal, n in zip(members, proposals, numbers, strict=True):
            if (draft := self._used.get(one)) is not None and proposal.draft == draft.estimates.name:
                draft.verifies(n)
                self._verified_at[one] = len(one.text.tokens) if n else self._verified_at[one]

    def _fail(self, error: Exception, *members: Member) -> None:
        """A draft has failed: these texts go on without theirs."""
        log.warning("the draft failed (%s): the texts go on without it", error, exc_info=error)
        for one in members:
            one.request.metrics.draft_error = str(error) or type(error).__name__
            self._refuse(one)

    def _refuse(self, member: Member) -> None:
        """The draft cannot continue this text, or does not pay there."""
        if (draft := self._used.get(member)) is not None:
            self._refused.add((member, draft.estimates.remote))
        self.end(member)

    def _follow(self, members: Sequence[Member]) -> None:
        """Use the drafts that can be used now, for the texts that are to have them."""
        for one, draft in [*self._used.items()]:
            is_idle = len(one.text.tokens) - self._verified_at[one] > DEFAULT.horizon
            if draft.estimates.has_ended or draft.is_unable or is_idle:
                self._refuse(one)
        connected = self._connected()
        for one, draft in [*self._used.items()]:
            free = self._free(one, connected)
            if draft not in connected if draft.estimates.remote else free is not None and free.estimates.remote:
                self.end(one)
        without = [one for one in members if one not in self._used]
        able = [one for one in without if one.text.mode != REJECTION and self._free(one, connected) is not None]
        for one in sorted(able, key=_found):
            free = self._free(one, connected)
            try:
                if isinstance(free, LocalDraft):
                    self._begin_local(free, one)
                elif free is not None:
                    self._begin(free, one)
            except Exception as error:  # the other texts keep theirs
                self._fail(error, one)

    def _connected(self) -> Sequence[AsyncDraft]:
        """The remote drafts that can be used. The local draft goes on until they are set up."""
        if (remote := self._pair.remote) is None:
            return ()
        remote.begin()  # of texts that they do not have yet
        found = remote.choose_all()
        return found if self._pair.draft is None else [each for each in found if each.is_set_up]

    def _free(self, member: Member, connected: Sequence[AsyncDraft]) -> AsyncDraft | None:
        """A draft that this text may have, and no other one has."""
        sources, used = member.generation.sources, self._used.values()
        may_be_remote = sources.remote is not None and (member, True) not in self._refused
        if may_be_remote and (free := next((each for each in connected if each not in used), None)) is not None:
            return free
        if (member, False) in self._refused:
            return None
        caches = {id(each.cache) for each in used if isinstance(each, LocalDraft)}  # texts may share one
        single = (each for each in sources.drafts if each.is_single(member.sequence) and id(each.cache) not in caches)
        return next((each for each in single if _schedule(each) is not OFF), None)

    def _begin_local(self, draft: LocalDraft, member: Member) -> None:
        """Draft for a text, unless all texts would have to wait until the draft has read it."""
        decode_s, read_s = self._costs.curve(1)[0], draft.estimates.costs.read_s
        if not decode_s:  # nothing is known yet
            return
        draft.threads = within(self._pair.threads, self._pair.cores.limit)
        belong([draft.cache], member.request.owner)
        self._begin(draft, member)
        in_turns = draft.estimates.schedule is SYNC
        if in_turns and draft.n_unread(len(member.text.tokens)) * read_s > DEFAULT.few * decode_s:
            self._refuse(member)

    def _begin(self, draft: AsyncDraft, member: Member) -> None:
        """Draft for a text from now on."""
        text, estimates = member.text, draft.estimates
        draft.recall()
        estimates.costs.use_cores(self._pair.cores.limit)
        estimates.begin(text.mode, len(text.tokens))
        estimates.schedule, estimates.is_chosen = _schedule(draft), True
        self._used[member], self._verified_at[member] = draft, len(text.tokens)
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


def _schedule(draft: AsyncDraft) -> Schedule:
    """In turns, if a local draft may; otherwise beside the target, if it may. OFF: it is idle."""
    return next((each for each in (SYNC, ASYNC) if each in draft.estimates.schedules), OFF)


def _found(member: Member) -> float:
    """Tokens that the lookup brought in each of the last steps of a text: those of a draft would replace them."""
    steps = member.request.metrics.steps[-DEFAULT.horizon :]
    return sum(one.n_accepted for one in steps if one.source is Origin.LOOKUP) / max(1, len(steps))


def _promised(proposal: Proposal) -> float:
    """Tokens that the candidates bring."""
    return math.fsum(accumulate((chance for chance, _ in proposal.chances), mul))
