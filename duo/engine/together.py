"""Together: several texts, each in a sequence of the target's cache. One decode makes the next tokens of all of them.

A decode has the last token of each text that is being written, with the candidates of its lookup or of the draft that
pay, and a piece of the shortest prompt that is still being read; on the CPU, most of a prompt is read by decodes of its
own. Drafts for several texts: see joint_draft.py and single_draft.py.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

from duo.config.model_config import ROWS
from duo.engine.cores import within
from duo.engine.decoder import Decoder, Shared
from duo.engine.generation import Generation
from duo.engine.joint_draft import JointDraft
from duo.engine.kv_store import LEAST, Cache, SavedCache, belong
from duo.engine.model_pair import ModelPair
from duo.engine.proposers import LookupProposer, RunningText
from duo.engine.request import Request
from duo.engine.single_draft import SingleDrafts
from duo.errors import DecodeAborted, DecodeError, ModelError
from duo.llama.build import CPU
from duo.llama.sequences import Logits
from duo.speculation.acceptance import Acceptance
from duo.speculation.joint import JointDecodes
from duo.speculation.modes import ALONE, SYNC, Mode
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.types import Candidate, Proposal, Step, common_prefix

log = logging.getLogger("duo.engine")

# Tokens after which a text does not wait any longer for the whole prompts of those that came with it.
_BEGUN = 16
_OLDEST = 4  # of so many decodes that read prompts, one reads the oldest
_LARGE = 32  # tokens of a prompt that are computed with the threads for prompts
# Flash attention on the CPU computes so many rows at once, with the cells of all of them: beside the rows of other
# texts those of a prompt take longer than the decode that is saved (GGML_FA_TILE_Q of ggml-cpu).
_TILE = 64


def _goes_before(writing: Request, reading: Request) -> bool:
    """Whether a text that is being written does not wait for the whole prompt of another: it was there before it."""
    steps = writing.metrics.steps
    return writing.n_written >= _BEGUN or (len(steps) > 0 and steps[0].end < reading.metrics.started)


@dataclass(eq=False, slots=True)
class Member:
    """A text that is written together with others."""

    request: Request
    generation: Generation
    cache: Cache  # of its sequence
    sequence: int
    slot: int  # of its conversation
    error: BaseException | None = None  # that has ended it
    failed_at: int = 0  # tokens that it had when llama.cpp failed, and all was read again
    # Of the draft, see joint_draft.py:
    acceptance: Acceptance = field(default_factory=Acceptance)  # of the draft's texts in this mode: they share it
    n_drafted: int = 0  # candidates that it may make in a step,
    n_more: int = 0  # and further ones in this step
    n_idle: int = 0  # tokens since it made one
    chain: list[Candidate] = field(default_factory=list)  # that it has made
    chances: list[tuple[float, float]] = field(default_factory=list)  # see Proposal

    @property
    def text(self) -> RunningText:
        """What is written."""
        return self.generation.text


class Together:
    """The texts that are written together. The engine's thread calls it, except interrupt()."""

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        self._costs = JointDecodes(pair.controller.target)
        self._draft, self._single = JointDraft(pair, self._costs), SingleDrafts(pair, self._costs)
        self._n_threads, self._reads_next = 0, False
        self._reading: Member | None = None  # whose prompt is in the decode that is being made
        self._shared: dict[int, tuple[int, int]] = {}  # by sequence: another one, whose first n cells it shares
        self._branched: tuple[int, int] | None = None  # the same of the text that is joining
        self._n_read = 0  # decodes that have read prompts
        self.members: list[Member] = []

    @property
    def _context(self) -> Shared:
        return cast("Shared", self._pair.caches[0].context)

    @property
    def n_free(self) -> int:
        """Cells that no text uses."""
        return self._context.n_cells - sum(member.cache.context.n_past for member in self.members) + self.n_shared

    @property
    def n_shared(self) -> int:
        """Tokens of texts that are in the cells of others: beginnings that they have in common."""
        return sum(self._shared.get(member.sequence, (0, 0))[1] for member in self.members)

    @property
    def lacks_room(self) -> bool:
        """Whether the next step of all texts has no room."""
        return self.n_free < len(self.members)

    @property
    def n_read(self) -> dict[Request, int]:
        """The tokens of each text in the cache."""
        return {one.request: one.cache.context.n_past for one in self.members}

    def begin(self) -> None:
        """Texts are written together from now on."""
        self._costs.begin()
        self._draft.begin()
        self._n_threads = 0

    def interrupt(self) -> None:
        """A text is cancelled: abort a decode that reads its prompt, which others then repeat. From any thread."""
        reading = self._reading
        if reading is not None and reading.request.cancelled.is_set():
            self._context.cancel()

    # Who is written

    def cache(self, prompt: Sequence[int], owner: str, n_kept: float = 0) -> tuple[Cache, int]:
        """A free sequence's cache, with what a text of `owner` that is being written has of `prompt`; its number.

        Unless less than `n_kept` tokens, which are in memory.
        """
        context, used = self._context, {member.sequence for member in self.members}
        own = [one for one in self.members if one.request.owner == owner]
        n, other = max(((common_prefix(self._read(one), prompt[:-1]), one.sequence) for one in own), default=(0, 0))
        is_known = n >= LEAST and n >= n_kept
        sequence = next((i for i in range(1, context.n_texts) if i not in used), 0)
        if not sequence or (0 not in used and self._pair.has_head and not is_known):  # a head reads sequence 0
            self._single.end_local()
            cache, sequence = self._pair.caches[0], 0
            belong([cache], owner)
            is_known = is_known and not self._pair.has_head
        else:
            cache = Cache(cast("Decoder", context.text(sequence)), owner)
        self._branched = None
        if is_known:
            context.branch(sequence, n, other)
            self._branched = other, n
            cache.end(prompt[:n])
        return cache, sequence

    def _read(self, member: Member) -> Sequence[int]:
        return member.text.tokens[: member.cache.context.n_past]

    def add(self, member: Member, put: Callable[[Step], None]) -> None:
        """Write it, too; `put` gets every step."""
        generation, pair = member.generation, self._pair
        looks_up = pair.lookup is not None and generation.sources.others
        memory = pair.memories.beside(member.request.owner) if looks_up else None
        n_most = min(pair.drafting.n_most, member.text.n_most)
        lookup = LookupProposer(PromptLookup(), n_most, memory) if looks_up else None
        generation.enter(member.cache.context, lookup, put, member.request.cancelled)
        self.members.append(member)
        if self._branched is not None:
            self._shared[member.sequence], self._branched = self._branched, None
        self._draft.add(member)
        pair.saved.reserved.add(member.slot)

    def end(self, member: Member) -> None:
        """It has ended: its conversation is kept, that of the last one in the contexts."""
        self._leave(member, pauses=False)
        for proposer in member.generation.sources.others:
            if isinstance(proposer, LookupProposer):
                proposer.learn(member.text)
        if self.members == [member]:
            self.settle()
        else:
            self._pair.saved.keep_beside(member.cache, member.slot)
            self._remove(member)

    def pause(self, member: Member) -> SavedCache:
        """It pauses. Returns a copy of its cache."""
        self._leave(member, pauses=True)
        saved = member.cache.save()
        self._remove(member)
        return saved

    def _leave(self, member: Member, *, pauses: bool) -> None:
        self._single.remove(member)
        member.generation.leave(pauses=pauses)
        member.cache.end(member.text.tokens, member.text.n_prompt)

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self._draft.remove(member)
        member.cache.clear()
        self._unshare(member.sequence)

    def _unshare(self, sequence: int) -> None:
        """A sequence is empty: what others have shared with it, they share with one of them."""
        source, n = self._shared.pop(sequence, (sequence, 0))
        heirs = {other: most for other, (whose, most) in self._shared.items() if whose == sequence}
        first = max(heirs, key=heirs.__getitem__, default=sequence)
        for other, most in heirs.items():
            self._shared[other] = (source, min(n, most)) if other == first else (first, most)

    def settle(self) -> Member:
        """One text is left: it is now the text of the contexts."""
        (member,) = self.members
        self.clear()
        text, (cache, *_) = member.text, self._pair.caches
        if member.sequence:
            self._context.adopt(member.sequence)
        cache.owner = member.request.owner
        cache.end(text.tokens, text.n_prompt)
        self._draft.settle(member)
        belong(self._pair.caches, cache.owner)
        member.generation.target, self._pair.saved.here = cache.context, member.slot
        return member

    def clear(self) -> None:
        """No texts are written together any more."""
        self._single.clear()
        self.members.clear()
        self._shared.clear()

    # What is written

    def ended(self) -> list[Member]:
        """The texts that have ended."""
        return [one for one in self.members if one.error is not None or not one.generation.goes_on()]

    def step(self) -> bool:
        """Make a step of all texts, unless some have ended, as those that have joined may. Whether it was made.

        Raises DecodeError or ModelError if it fails again before any text has another token.
        """
        if self.ended():
            return False
        try:
            self._decode()
        except DecodeAborted:
            pass  # by interrupt()
        except (DecodeError, ModelError) as error:
            self._fail(error)
        return True

    def _fail(self, error: DecodeError | ModelError) -> None:
        """Read all again, once."""
        self._single.end()
        self._pair.reset()
        self._shared.clear()
        if all(member.failed_at == len(member.text.tokens) for member in self.members):
            raise error
        for member in self.members:
            member.failed_at = len(member.text.tokens)
        log.warning("%s: all is read again, with empty caches", error)

    def _decode(self) -> None:
        context, now = self._context, self.members[0].request.metrics.clock.now
        writing, reading, in_pieces = self._due()
        n_most = min(ROWS, context.n_batch, self.n_free) - len(self.members)
        rooms, looked_up = [one.text.n_room - 1 for one in writing], [one.generation.propose() for one in writing]
        began, proposals = now(), self._single.propose(writing, looked_up, n_most)
        numbers = self._costs.plan(proposals, rooms, n_most)
        proposals = self._draft.propose(writing, proposals, numbers, n_most)
        drafted_s = now() - began
        if any(one.chain for one in writing):
            numbers = self._costs.plan(proposals, rooms, n_most)
        self._single.verifies(writing, proposals, numbers)
        parts = [
            (one.sequence, [one.text.tokens[-1], *[each.token for each in proposal.candidates[:n]]], 1 + n)
            for one, proposal, n in zip(writing, proposals, numbers, strict=True)
        ]
        n_rows, n_read = sum(rows for _, _, rows in parts), 0
        alone: AbstractContextManager[None] = nullcontext()
        decoded = writing if reading is None else [*writing, reading]
        if reading is not None:
            text, n_past = reading.text, reading.cache.context.n_past
            n_read = min(text.n_fresh, min(context.n_batch, self.n_free) - n_rows)
            if in_pieces:
                n_read = min(n_read, self._costs.n_beside(n_rows))
            reading.generation.on_prompt(n_past)
            is_whole = n_read == text.n_fresh
            if n_read >= _TILE and not (parts or self._shared or self._pair.has_head) and context.flash_attn == "off":
                alone = context.alone(reading.sequence)
            parts.append((reading.sequence, text.tokens[n_past : n_past + n_read], int(is_whole)))
            if is_whole:
                writing, proposals, numbers = decoded, [*proposals, Proposal()], [*numbers, 0]
        self._set_threads(n_read)
        start, self._reading = now(), reading if n_read else None
        self._n_read += n_read > 0
        try:
            with alone:
                logits = context.decode_parts(parts)
        finally:
            self._reading = None
        end = now()
        for one, (_, tokens, _) in zip(decoded, parts, strict=True):
            one.request.metrics.decoded(start, end, len(tokens))
        n_tokens = 0
        for one, rows, proposal, n in zip(writing, logits, proposals, numbers, strict=False):
            n_tokens += self._take(one, rows, proposal, n, start, end)
        if not context.was_first:
            self._costs.learn(len(looked_up), n_rows, n_read, n_tokens, end - start, drafted_s)

    def _due(self) -> tuple[list[Member], Member | None, bool]:
        """Whose next tokens the next decode makes, whose prompt it reads, and whether in a piece.

        That is the shortest prompt, but each fourth time the oldest: short ones may come without end.
        On the CPU, much of a prompt is a decode of its own, in turn with those of the texts that are being written.
        """
        writing = [one for one in self.members if one.text.n_fresh == 1]
        waiting = [one for one in self.members if one.text.n_fresh > 1]
        reading = min(waiting, key=lambda one: one.text.n_fresh, default=None)
        if waiting and self._n_read % _OLDEST == _OLDEST - 1:
            reading = waiting[0]
        in_pieces = reading is not None and any(_goes_before(one.request, reading.request) for one in writing)
        is_apart = self._pair.target.places == {CPU} and not in_pieces
        if writing and reading is not None and reading.text.n_fresh >= _TILE and is_apart:
            self._reads_next = not self._reads_next
            return ([], reading, False) if self._reads_next else (writing, None, False)
        return writing, reading, in_pieces

    def _take(self, member: Member, logits: Logits, proposal: Proposal, n: int, start: float, end: float) -> int:
        """The tokens that a decode with the first `n` candidates adds to a text. Its errors are its own."""
        n_before, mode = len(member.text.tokens), Mode(proposal.draft, SYNC) if proposal.draft else ALONE
        if proposal.draft == (own := self._single.mode(member)).draft:
            mode = own
        try:
            member.generation.take(logits, proposal.candidates[:n], mode, start, end)
        except Exception as error:
            member.error = error
        self._draft.learn(member, n_before)
        return len(member.text.tokens) - n_before

    def _set_threads(self, n_read: int) -> None:
        pair = self._pair
        pair.cores.decoded()
        usable = within(pair.threads, pair.cores.limit)
        n = self._single.n_target_threads(usable.target_batch if n_read >= _LARGE else usable.target)
        if n != self._n_threads:
            self._context.set_threads(n, n)
            self._n_threads = n
