"""KvStore: the KV caches of several texts, of which the contexts hold one and memory the others."""

import math
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from duo.engine.decoder import Cache, SavedCache
from duo.errors import PromptError
from duo.llama.context import SavedState
from duo.speculation.types import common_prefix

# A text that shorter ones replace is not worth a copy; nor are a few more tokens of a prompt.
_LEAST = 32
# The last tokens of a prompt belong to the answer: the next turn may have others there, such as without a thought.
_ENDING = 16


@dataclass(slots=True, eq=False)
class _Saved:
    """A text that is not in the contexts. `slot`: its number."""

    slot: int
    tokens: Sequence[int]
    n_prompt: int
    caches: list[SavedCache]

    @property
    def n_bytes(self) -> int:
        return sum(cache.n_bytes for cache in self.caches)

    def n_usable(self, prompt: Sequence[int], *, whole: bool) -> int:
        """Tokens of a prompt that are in it; `whole`: it can be used as a whole only."""
        n = common_prefix(self.tokens, prompt[:-1])
        return n if n == len(self.tokens) or not whole else 0


class KvStore:
    """Keeps at most `n_texts` texts, the one in the contexts included, and `n_bytes` of those in memory.

    llama.cpp copies the state of a sequence, and restores it into consecutive cells. So decodes take as long as with
    one text, and their logits are bit-equal; several sequences in one cache would share its cells.
    """

    def __init__(self, n_texts: int, n_bytes: int) -> None:
        self._n_most, self._n_bytes_most = n_texts - 1, n_bytes
        self._texts: list[_Saved] = []  # the least recently used one first
        self.reserved: set[int] = set()  # slots of texts that have paused
        self.here = 0  # the slot of the text in the contexts; the others are those of texts in memory, or free

    @property
    def sizes(self) -> dict[int, int]:
        """Tokens of the texts in memory, by slot. From any thread."""
        return {text.slot: len(text.tokens) for text in self._texts}

    def at(self, slot: int) -> SavedCache | None:
        """The target's cache of a text in memory."""
        text = self._at(slot)
        return text.caches[0] if text is not None else None

    def remove(self, slot: int) -> None:
        """Forget a text in memory."""
        self._texts = [text for text in self._texts if text.slot != slot]

    def take(self, slot: int) -> None:
        """What is put into the contexts had this slot before; a text in memory that has it now gets another."""
        if (text := self._at(slot)) is not None:
            text.slot = self.here
        self.here = slot

    def _at(self, slot: int) -> _Saved | None:
        return next((text for text in self._texts if text.slot == slot), None)

    def _leave(self, slot: int) -> None:
        """A text in memory has this slot: if it was that of the contexts, they take a free one."""
        if slot == self.here:
            self._move()

    def _move(self) -> None:
        """The contexts take a free slot."""
        free = {*range(self._n_most + 1)} - self.sizes.keys()
        self.here = min(free - self.reserved or free)

    def clear(self) -> None:
        """Forget them."""
        self._texts.clear()

    def begin(self, caches: Sequence[Cache], prompt: Sequence[int], slot: int = -1) -> None:
        """Put the text that has most of `prompt` into the contexts, or that of `slot`, if this is not negative.

        What the contexts hold is saved if `prompt` is not its next turn. `caches`: the target's, and those of drafts.
        """
        target = caches[0]
        if not self._n_most or target.savable is None or slot == self.here:
            return
        if slot >= 0:
            self.change(caches, slot)
            return
        whole, here = target.context.n_rollback is not None or target.savable.is_windowed, target.tokens
        n_here = common_prefix(here, prompt[:-1])
        continues = n_here >= target.n_prompt - _ENDING or n_here == len(here)
        n_usable = n_here if n_here == len(here) or not whole else 0
        best = max(self._texts, key=lambda text: text.n_usable(prompt, whole=whole), default=None)
        restores = best is not None and best.n_usable(prompt, whole=whole) > n_usable + _LEAST
        if restores and best is not None:
            self.remove(best.slot)
        if len(here) - n_here >= _LEAST and (restores or not continues):
            self.keep(caches)
        if restores and best is not None:
            _load(caches, best)
            # If it is not the next turn of that one, it stays.
            stays = best.n_usable(prompt, whole=whole) < best.n_prompt - _ENDING
            target.is_copied = stays and self._make_room(best.n_bytes, best.tokens)
            if not target.is_copied:
                self.here = best.slot
                return
            self._texts.append(best)
            self._leave(best.slot)
        if self.here in self.reserved:
            self._move()

    def change(self, caches: Sequence[Cache], slot: int) -> None:
        """Put the text of a slot into the contexts; nothing, if it is free."""
        if slot == self.here:
            return
        text = self._at(slot)
        self.remove(slot)
        self.keep(caches)
        if text is not None:
            _load(caches, text)
        else:
            for cache in caches:
                cache.clear()
        caches[0].is_copied, self.here = False, slot

    def keep(self, caches: Sequence[Cache]) -> None:
        """Copy the text in the contexts, if there is no copy yet, and there is room for one."""
        target, n_bytes = caches[0], sum(cache.n_state_bytes for cache in caches)
        if len(target.tokens) < _LEAST or target.is_copied or target.savable is None:
            return
        if self._make_room(n_bytes, target.tokens):
            self._texts.append(_Saved(self.here, target.tokens, target.n_prompt, [cache.save() for cache in caches]))
            target.is_copied = True
            self._leave(self.here)

    def _make_room(self, n_bytes: int, tokens: Sequence[int]) -> bool:
        """Forget texts that this one continues, and then the least recently used ones. False: it is too large."""
        if not self._n_most or n_bytes > self._n_bytes_most:
            return False
        self._texts = [one for one in self._texts if common_prefix(one.tokens, tokens) < len(one.tokens)]
        while len(self._texts) >= self._n_most or self._size + n_bytes > self._n_bytes_most:
            del self._texts[0]
        return True

    @property
    def _size(self) -> int:
        return sum(one.n_bytes for one in self._texts)


def _load(caches: Sequence[Cache], text: _Saved) -> None:
    for cache, saved in zip(caches, text.caches, strict=False):
        cache.load(saved)
    for cache in caches[len(text.caches) :]:
        cache.clear()


def write_cache(path: Path, cache: SavedCache, identity: str) -> None:
    """Write the copy of a target's cache to a file. Raises OSError."""
    assert cache.state is not None
    numbers = [cache.n_prompt, cache.n_large, cache.state.n_past]
    # An older file is kept if this one cannot be written.
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            np.savez(file, identity=identity, tokens=np.array(cache.tokens), numbers=numbers, cells=cache.state.cells)
            file.close()
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)


def read_cache(path: Path, identity: str, n_most: int, n_ctx: int, n_vocab: int) -> SavedCache:
    """Read such a file of at most `n_most` bytes. Raises OSError, or PromptError if it is damaged or does not fit.

    Nothing in it is believed: not its kind (a pipe would block), not that it is not packed, and no number.
    """
    damaged = PromptError(f"{path.name} is not a saved conversation, or damaged")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PromptError(f"{path.name} is not a file")
        if status.st_size > n_most:
            raise PromptError(f"{path.name} has {status.st_size} bytes: a conversation has at most {n_most} here")
        try:
            with ZipFile(file) as archive:
                if sum(member.file_size for member in archive.infolist()) > status.st_size:  # it would be unpacked
                    raise damaged
                found = _array(archive, "identity", "U", 0)
                tokens, numbers, cells = (_array(archive, name, "iu", 1) for name in ("tokens", "numbers", "cells"))
        except Exception:  # of zipfile and numpy, which have many; their words are for programmers
            raise damaged from None
    if str(found) != identity:
        raise PromptError(f"{path.name} was saved with another model or other options")
    n = len(tokens)
    if n > n_ctx:
        raise PromptError(f"{path.name} has {n} tokens, the context {n_ctx}")
    are_tokens = n and tokens.min() >= 0 and tokens.max() < n_vocab
    if not are_tokens or len(numbers) != 3 or numbers.min() < 0 or numbers[2] != n or cells.dtype != np.uint8:
        raise damaged
    n_prompt, n_large, n_past = numbers.tolist()
    return SavedCache(tuple(tokens.tolist()), n_prompt, n_large, SavedState(cells, n_past))


def _array(archive: ZipFile, name: str, kinds: str, n_axes: int) -> npt.NDArray[Any]:
    """An array of numpy's format whose size is what it says. Raises many errors."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        n_bytes = math.prod(shape) * dtype.itemsize
        if dtype.kind not in kinds or len(shape) != n_axes or n_bytes != member.file_size - file.tell():
            raise ValueError
        return np.frombuffer(file.read(), dtype).reshape(shape)
