"""SavedTexts: the KV caches of several texts, of which the contexts hold one and memory the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from duo.engine.decoder import Cache, SavedCache
from duo.spec.types import common_prefix

# A text that shorter ones replace is not worth a copy; nor are a few more tokens of a prompt.
_LEAST = 32
# The last tokens of a prompt belong to the answer: the next turn may have others there, such as without a thought.
_ENDING = 16


@dataclass(slots=True, eq=False)
class _Saved:
    """A text that is not in the contexts."""

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


class SavedTexts:
    """Keeps at most `n_texts` texts, the one in the contexts included, and `n_bytes` of those in memory.

    llama.cpp copies the state of a sequence, and restores it into consecutive cells. So decodes take as long as with
    one text, and their logits are bit-equal; several sequences in one cache would share its cells.
    """

    def __init__(self, n_texts: int, n_bytes: int) -> None:
        self._n_most, self._n_bytes_most = n_texts - 1, n_bytes
        self._texts: list[_Saved] = []  # the least recently used one first

    @property
    def sizes(self) -> list[int]:
        """Tokens of the texts in memory, the latest first. From any thread."""
        return [len(text.tokens) for text in reversed(self._texts)]

    def clear(self) -> None:
        """Forget them."""
        self._texts.clear()

    def begin(self, caches: Sequence[Cache], prompt: Sequence[int]) -> None:
        """Put the text that has most of `prompt` into the contexts.

        What the contexts hold is saved if `prompt` is not its next turn. `caches`: the target's, and those of drafts.
        """
        target = caches[0]
        if not self._n_most or target.savable is None:
            return
        whole, here = target.context.n_rollback is not None or target.savable.is_windowed, target.tokens
        n_here = common_prefix(here, prompt[:-1])
        continues = n_here >= target.n_prompt - _ENDING or n_here == len(here)
        n_usable = n_here if n_here == len(here) or not whole else 0
        best = max(self._texts, key=lambda text: text.n_usable(prompt, whole=whole), default=None)
        restores = best is not None and best.n_usable(prompt, whole=whole) > n_usable + _LEAST
        if len(here) - n_here >= _LEAST and (restores or not continues):
            self._save(_Saved(here, target.n_prompt, [cache.save() for cache in caches]))
        if restores and best is not None:
            for cache, saved in zip(caches, best.caches, strict=False):
                cache.load(saved)
            for cache in caches[len(best.caches) :]:
                cache.clear()
            if best in self._texts:
                self._texts.remove(best)
            if best.n_usable(prompt, whole=whole) < best.n_prompt - _ENDING:  # it is not the next turn of that one
                self._save(best)

    def _save(self, text: _Saved) -> None:
        new = text.tokens
        self._texts = [one for one in self._texts if common_prefix(one.tokens, new) < len(one.tokens)]
        self._texts.append(text)
        while self._texts and (len(self._texts) > self._n_most or self._size > self._n_bytes_most):
            del self._texts[0]

    @property
    def _size(self) -> int:
        return sum(one.n_bytes for one in self._texts)
