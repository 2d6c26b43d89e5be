"""Memories: which memory a text has, by whose it is."""

import logging
import operator
from collections.abc import Sequence
from copy import copy
from itertools import accumulate

import numpy as np

from duo.config import AUTO_DRAFT
from duo.engine.proposers import LookupProposer
from duo.errors import ModelError
from duo.models.memory_file import MemoryFile
from duo.speculation.memory import END, Memory
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import common_prefix

log = logging.getLogger("duo.engine")

_MOST_UNWRITTEN = 4096  # tokens, which a process that is killed loses
_MOST_SHADOWED, _REPLAYED = 2**16, 256  # tokens of a shadow memory, and of a text


class KeptMemory(Memory):
    """A memory in a file, which is written seldom: it is written as a whole, while a text waits."""

    def __init__(self, file: MemoryFile) -> None:
        super().__init__(file.texts)
        self._file: MemoryFile | None = file  # None: it can no longer be written
        self._unwritten: list[Sequence[int]] = []

    def learn(self, text: Sequence[int]) -> None:
        """Add what the target has written in a text that has ended, later to the file, too."""
        super().learn(text)
        self._unwritten.append(text)
        if sum(map(len, self._unwritten)) >= _MOST_UNWRITTEN:
            self.write()

    def write(self) -> None:
        """Write what the file lacks."""
        texts, self._unwritten = self._unwritten, []
        try:
            if self._file is not None and texts:
                self._file.add(texts)
        except ModelError as error:
            log.warning("%s", error)
            self._file = None


class ShadowMemory(Memory):
    """A memory that proposes nothing: of some texts is learned how much faster they would have been with it."""

    def __init__(self, target: TargetCosts) -> None:
        super().__init__()
        self.target, self._n_texts = target, 0

    def learn(self, text: Sequence[int]) -> None:
        """Add what the target has written in a text that has ended, unless it knows enough."""
        if len(self.log) < _MOST_SHADOWED:
            super().learn(text)

    def compare(self, text: Sequence[int], n_prompt: int, lookup: PromptLookup) -> None:
        """Replay the beginning of a text, if it is due, with and without this memory; `lookup` has indexed it."""
        self._n_texts += 1
        curve = self.target.alone.curve(AUTO_DRAFT + 1)
        if self._n_texts % 8 != 4 or not curve[0] or len(text) == n_prompt:
            return
        text = text[: n_prompt + _REPLAYED]
        if np.array([END, *text[n_prompt:]], np.uint32).tobytes() in self.log.tobytes():  # it says nothing of others
            return
        alone_s, with_s = (_replayed_s(text, n_prompt, lookup, each, curve) for each in (None, self))
        self.target.memory_gain.add(alone_s / with_s)


def _replayed_s(
    text: Sequence[int], n_prompt: int, lookup: PromptLookup, memory: Memory | None, curve: Sequence[float]
) -> float:
    """Seconds for the text after its prompt, where a batch of 1, 2, … tokens takes what `curve` says."""
    at, seconds = n_prompt, 0.0
    lookup.begin(text[:at])
    if memory is not None:
        memory.begin(())
    while at < len(text):
        found, rate = lookup.propose(len(curve) - 1, memory), max(1 / curve[0], (at - n_prompt) / (seconds or 1e9))
        survivals = accumulate((chance for chance, _ in found.chances), operator.mul)
        values = [n - rate * curve[i] for i, n in enumerate(accumulate(survivals, initial=1.0))]
        n = values.index(max(values))
        n_right = common_prefix([candidate.token for candidate in found.candidates[:n]], text[at : at + n])
        lookup.extend(new := text[at : at + n_right + 1])
        if memory is not None:
            memory.extend(new)
        at, seconds = at + n_right + 1, seconds + curve[n]
    return seconds


class Memories:
    """The memories of a target: one in a file; or in RAM, one for each owner of texts; or none."""

    def __init__(self, kept: Memory | None = None, target: TargetCosts | None = None) -> None:
        """`target`: learns what memories would bring where there are none; None: nothing is learned."""
        self.kept, self.in_ram = kept, False
        self.owner = ""  # of the next text; those of one owner never serve another
        self._by_owner: dict[str, Memory] = {}
        self._shadow = ShadowMemory(target) if target is not None else None

    @property
    def gain(self) -> float | None:
        """How many times as fast earlier texts would have been with a memory; 0: not known; None: there is one."""
        if self.in_ram or self.kept is not None:
            return None
        return self._shadow.target.memory_gain.value if self._shadow is not None else 0.0

    def proposers(self, lookup: PromptLookup | None, n_most: int) -> list[LookupProposer]:
        """The `lookup` as a proposer for the next text, with the memory that this has; `n_most`: candidates."""
        memory, shadow = self._of(self.owner), None if self.in_ram else self._shadow
        return [LookupProposer(lookup, n_most, memory, self.owner, shadow)] if lookup is not None else []

    def beside(self, owner: str) -> Memory | None:
        """A memory for a text of `owner` that is written beside others: it follows that text, and learns none."""
        return copy(self._of(owner))

    def _of(self, owner: str) -> Memory | None:
        return self._by_owner.setdefault(owner, Memory()) if self.in_ram else self.kept
