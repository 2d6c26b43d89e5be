"""KvStore: the KV caches of several texts, of which the contexts hold one and memory the others."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from duo.config import LARGE_BATCH
from duo.engine.decoder import Decoder, Savable, score_size
from duo.errors import RollbackError
from duo.speculation.types import TokenLogprobs, common_prefix

# A text that shorter ones replace is not worth a copy; nor are a few more tokens of a prompt.
LEAST = 32
# The last tokens of a prompt belong to the answer: the next turn may have others there, such as without a thought.
_ENDING = 16


@dataclass(frozen=True, slots=True)
class SavedCache:
    """A copy of a Cache."""

    tokens: Sequence[int]
    n_prompt: int
    n_large: int
    state: Any  # what the context takes back
    owner: str = ""  # who alone may reuse it

    @property
    def n_bytes(self) -> int:
        """Its size in memory."""
        return self.state.nbytes if self.state is not None else 0


@dataclass(slots=True)
class Cache:
    """A context, and the tokens in its KV cache."""

    context: Decoder
    owner: str = ""  # of what it holds: see Request
    exact: bool = False  # keep only what a new context would read in batches of the same kind: see kept_exactly()
    n_prompt: int = 0  # of the tokens; the others are those that were written
    is_copied: bool = False  # whether there is a copy of what it holds
    # Logprobs of its tokens from the second on, as far as it was read in batches of score_size()
    scored: list[TokenLogprobs] = field(default_factory=list)
    _tokens: Sequence[int] = ()
    _n_large: int = 0  # of them were read in large batches, if `exact`

    def begin(self, text: Sequence[int], n_top: int | None = None) -> int:
        """Keep the longest common prefix with `text`, without its last token, and return its length.

        `n_top`: only if `scored` has the tokens in it, each with so many likely ones. Clears the cache if it cannot be
        rolled back that far. Raises RollbackError if even that fails.
        """
        n = common_prefix(self._tokens[: self.context.n_past], text[:-1])
        n_scored = max(0, n - 1)  # the next token is another one
        if n_top is not None:
            # Only whole batches, so that logprobs do not depend on what was in the cache; none if they would.
            known, size = self.scored[:n_scored] if self.savable is not None else [], score_size(self.context)
            n = n_scored = len(known) // size * size if known and len(known[0].top) == n_top else 0
            self._n_large = 0
        elif self.exact:
            n = kept_exactly(n, self._n_large, len(text), self.context.n_batch)
            self._n_large = n_read_in_large_batches(len(text), self.context.n_batch)
        self._tokens = ()
        try:
            self.context.rollback(n)
        except RollbackError:
            n = n_scored = 0
            self.context.rollback(0)
        self.scored = self.scored[: min(n_scored, n)]
        return n

    def end(self, tokens: Sequence[int], n_prompt: int = 0) -> None:
        """The text has ended: the cache holds the first `n_past` of `tokens`."""
        self._tokens, self.n_prompt, self.is_copied = tuple(tokens), n_prompt, False

    @property
    def tokens(self) -> Sequence[int]:
        """What it holds."""
        return self._tokens[: self.context.n_past]

    def save(self) -> SavedCache:
        """A copy."""
        savable, state = self.savable, None
        if self.tokens and savable is not None:
            with suppress(MemoryError):  # then the text is read again
                state = savable.save()
        return SavedCache(self.tokens, self.n_prompt, self._n_large, state, self.owner)

    @property
    def n_state_bytes(self) -> int:
        """The size of a copy."""
        return self.savable.n_state_bytes if self.context.n_past and self.savable is not None else 0

    @property
    def savable(self) -> Savable | None:
        """The context, if it can be saved."""
        return self.context if isinstance(self.context, Savable) and self.context.can_save else None

    def load(self, saved: SavedCache) -> None:
        """Hold what was saved; nothing, if llama.cpp cannot restore it."""
        self.clear()
        self.owner = saved.owner
        if saved.state is not None and (savable := self.savable) is not None and savable.load(saved.state):
            self._tokens, self.n_prompt, self._n_large = saved.tokens, saved.n_prompt, saved.n_large

    def clear(self) -> None:
        """Hold nothing."""
        self.context.rollback(0)
        self._tokens, self.n_prompt, self._n_large, self.is_copied, self.scored = (), 0, 0, False, []


def n_read_in_large_batches(n_prompt: int, n_batch: int) -> int:
    """Tokens at the beginning of a prompt that an empty context reads in batches of LARGE_BATCH tokens or more."""
    last = (n_prompt - 1) % n_batch + 1
    if n_batch < LARGE_BATCH:
        return 0
    return n_prompt if last >= LARGE_BATCH else n_prompt - last


def kept_exactly(n: int, n_large: int, n_prompt: int, n_batch: int) -> int:
    """How many of `n` tokens to keep, the first `n_large` of which were read in large batches.

    llama.cpp's kernels for large batches give other logits than those for small ones. So each token of the prompt, kept
    or read after them, must be read in a batch of the kind that an empty context would read it in.
    """
    large = n_read_in_large_batches(n_prompt, n_batch)
    n = n if n_large == large else min(n, n_large, large)
    if n >= large:
        return n
    if large < n_prompt:  # the last batch is small: it begins where it would
        return n // n_batch * n_batch
    last = (n_prompt - n - 1) % n_batch + 1
    return n if last >= LARGE_BATCH else max(0, n - LARGE_BATCH + last)


class KvStore:
    """Keeps at most `n_texts` texts, the one in the contexts included, and `n_bytes` of those in memory.

    llama.cpp copies the state of a sequence, and restores it into consecutive cells. So decodes take as long as with
    one text, and their logits are bit-equal; several sequences in one cache would share its cells, as those of texts
    that are written together do. The caches of a text are the target's, and those of drafts.
    """

    def __init__(self, n_texts: int, n_bytes: int) -> None:
        self._n_most, self._n_bytes_most = n_texts - 1, n_bytes
        self._texts: dict[int, list[SavedCache]] = {}  # in memory, by slot, the least recently used one first
        self.reserved: set[int] = set()  # slots of texts that have paused
        self.here = 0  # the slot of the text in the contexts; the others are those of texts in memory, or free

    @property
    def sizes(self) -> dict[int, int]:
        """Tokens of the texts in memory, by slot. From any thread."""
        return {slot: len(saved[0].tokens) for slot, saved in self._texts.copy().items()}

    def in_common(self, prompt: Sequence[int], owner: str) -> dict[int, int]:
        """Tokens of a prompt of `owner` that each text in memory has, by slot."""
        return {slot: _in_common(saved[0], prompt, owner) for slot, saved in self._texts.items()}

    def at(self, slot: int) -> SavedCache | None:
        """The target's cache of a text in memory."""
        return self._texts[slot][0] if slot in self._texts else None

    @property
    def texts(self) -> Mapping[int, list[SavedCache]]:
        """Those in memory now, by slot."""
        return self._texts.copy()

    def put_back(self, texts: Mapping[int, list[SavedCache]]) -> None:
        """Keep these again, which were in memory."""
        self._texts = dict(texts)

    def remove(self, slot: int) -> None:
        """Forget a text in memory."""
        self._texts.pop(slot, None)

    def take(self, slot: int) -> None:
        """What is put into the contexts had this slot before; a text in memory that has it now gets another."""
        self._texts = {self.here if other == slot else other: saved for other, saved in self._texts.items()}
        self.here = slot

    def _put(self, slot: int, saved: list[SavedCache]) -> None:
        """Put a text into memory. If the contexts had its slot, they take a free one."""
        self._texts[slot] = saved
        if slot == self.here:
            self._move()

    def _move(self) -> None:
        """The contexts take a free slot."""
        free = {*range(self._n_most + 1)} - self._texts.keys()
        self.here = min(free - self.reserved or free)

    def clear(self) -> None:
        """Forget them."""
        self._texts.clear()

    def begin(self, caches: Sequence[Cache], prompt: Sequence[int], slot: int = -1, owner: str = "") -> None:
        """Put the text of `owner` that has most of `prompt` into the contexts, or, if `slot` is not negative, its text.

        What the contexts hold is saved if `prompt` is not its next turn.
        """
        target = caches[0]
        if not self._n_most or target.savable is None or slot == self.here:
            return
        if slot >= 0:
            self.change(caches, slot)
            return
        whole, here = target.context.n_rollback is not None or target.savable.is_windowed, target.tokens

        def n_usable(held: Cache | SavedCache) -> int:
            """Tokens of the prompt that are in a text."""
            n = _in_common(held, prompt, owner)
            return n if n == len(held.tokens) or not whole else 0

        n_here = _in_common(target, prompt, owner)
        continues = target.owner == owner and (n_here >= target.n_prompt - _ENDING or n_here == len(here))
        usable = {other: n_usable(saved[0]) for other, saved in self._texts.items()}
        best = max(usable, key=usable.__getitem__, default=self.here)
        saved = self._texts.pop(best) if usable.get(best, 0) > n_usable(target) + LEAST else None
        if len(here) - n_here >= LEAST and (saved or not continues):
            self.keep(caches)
        if saved:
            _load(caches, saved)
            # If it is not the next turn of that one, it stays.
            stays = usable[best] < saved[0].n_prompt - _ENDING
            target.is_copied = stays and self._make_room(sum(cache.n_bytes for cache in saved), saved[0])
            if not target.is_copied:
                self.here = best
                return
            self._put(best, saved)
        if self.here in self.reserved:
            self._move()

    def begin_beside(
        self, cache: Cache, prompt: Sequence[int], slot: int = -1, owner: str = "", n_room: float = math.inf
    ) -> int:
        """Put the text of `owner` in memory that has most of `prompt`, or is in `slot`, into an empty cache.

        If the cache, beside the contexts, is not empty, or there is no text that fits `n_room` cells, it gets a free
        slot. Returns the slot.
        """
        found = self.in_common(prompt, owner)
        best = slot if slot >= 0 else max(found, key=found.__getitem__, default=-1)
        if not cache.context.n_past and found.get(best, 0) >= LEAST and self.sizes[best] <= n_room:
            saved = self._texts[best][0]
            cache.load(saved)
            if slot < 0 and found[best] >= saved.n_prompt - _ENDING:  # its next turn
                slot = best
        if slot >= 0:
            self._texts.pop(slot, None)
            return slot
        slots: set[int] = {*range(self._n_most + 1)} - self.reserved
        free = slots - self._texts.keys()
        if not free:
            slot = next(other for other in self._texts if other in slots)
            self.remove(slot)
            return slot
        return min(free - {self.here} or free)

    def keep_beside(self, cache: Cache, slot: int) -> None:
        """Copy the text of a cache beside the contexts, as keep()."""
        self.reserved.discard(slot)
        if len(cache.tokens) >= LEAST and self._make_room(cache.n_state_bytes, cache):
            self._put(slot, [cache.save()])

    def change(self, caches: Sequence[Cache], slot: int) -> None:
        """Put the text of a slot into the contexts; nothing, if it is free."""
        if slot == self.here:
            return
        saved = self._texts.pop(slot, [])
        self.keep(caches)
        _load(caches, saved)
        caches[0].is_copied, self.here = False, slot

    def keep(self, caches: Sequence[Cache]) -> None:
        """Copy the text in the contexts, if there is no copy yet, and there is room for one."""
        target, n_bytes = caches[0], sum(cache.n_state_bytes for cache in caches)
        if len(target.tokens) < LEAST or target.is_copied or target.savable is None:
            return
        if self._make_room(n_bytes, target):
            self._put(self.here, [cache.save() for cache in caches])
            target.is_copied = True

    def _make_room(self, n_bytes: int, held: Cache | SavedCache) -> bool:
        """Forget texts that this one continues, and then the least recently used ones. False: it is too large."""
        if not self._n_most or n_bytes > self._n_bytes_most:
            return False
        longer = [*held.tokens, 0], held.owner
        texts = {i: saved for i, saved in self._texts.items() if _in_common(saved[0], *longer) < len(saved[0].tokens)}
        sizes = {slot: sum(cache.n_bytes for cache in saved) for slot, saved in texts.items()}
        while len(texts) >= self._n_most or sum(sizes.values()) + n_bytes > self._n_bytes_most:
            oldest = next(iter(texts))
            del texts[oldest], sizes[oldest]
        self._texts = texts
        return True


def belong(caches: Sequence[Cache], owner: str) -> None:
    """What they hold from now on is of `owner`: drafts, too, must not be faster for what another one has asked."""
    for cache in caches:
        if cache.owner != owner:
            cache.clear()
            cache.owner = owner


def _in_common(held: Cache | SavedCache, prompt: Sequence[int], owner: str) -> int:
    """Tokens of a prompt of `owner`, without its last one, that a cache has: none of another owner's."""
    return common_prefix(held.tokens, prompt[:-1]) if held.owner == owner else 0


def _load(caches: Sequence[Cache], saved: Sequence[SavedCache]) -> None:
    """Hold what was saved; nothing, where there is none."""
    for cache, one in zip(caches, saved, strict=False):
        cache.load(one)
    for cache in caches[len(saved) :]:
        cache.clear()
