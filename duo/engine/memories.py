"""Memories: which memory a text has, by whose it is."""

import logging
from collections.abc import Sequence
from copy import copy

from duo.engine.proposers import LookupProposer
from duo.errors import ModelError
from duo.models.memory_file import MemoryFile
from duo.speculation.memory import Memory
from duo.speculation.prompt_lookup import PromptLookup

log = logging.getLogger("duo.engine")


class KeptMemory(Memory):
    """A memory in a file, which is written seldom: it is written as a whole, while a text waits."""

    def __init__(self, file: MemoryFile) -> None:
        super().__init__(file.texts)
        self._file: MemoryFile | None = file  # None: it can no longer be written
_MOST_UNWRITTEN = 4096  # tokens, which a process that is killed loses
_MOST_SHADOWED, _REPLAYED = 2**16, 256  # tokens of a shadow memory, and of a text


    def learn(self, text: Sequence[int]) -> None:
        """Add what the target has written in a text that has ended, later to the file, too."""
        super().learn(text)
        try:
            if self._file is not None and texts:
                self._file.add(texts)
        self._unwritten: list[Sequence[int]] = []
        except ModelError as error:
            log.warning("%s", error)
            self._file = None

        self._unwritten.append(text)
        if sum(map(len, self._unwritten)) >= _MOST_UNWRITTEN:
            self.write()

    def write(self) -> None:
        """Write what the file lacks."""
        texts, self._unwritten = self._unwritten, []

class Memories:
    """The memories of a target: one in a file; or in RAM, one for each owner of texts; or none."""

    def __init__(self, kept: Memory | None = None) -> None:
        self.kept, self.in_ram = kept, False
        self.owner = ""  # of the next text; those of one owner never serve another
        self._by_owner: dict[str, Memory] = {}

    def proposers(self, lookup: PromptLookup | None, n_most: int) -> list[LookupProposer]:
        """The `lookup` as a proposer for the next text, with the memory that this has; `n_most`: candidates."""
        memory = self._of(self.owner)
        return [LookupProposer(lookup, n_most, memory, self.owner)] if lookup is not None else []

    def beside(self, owner: str) -> Memory | None:
        """A memory for a text of `owner` that is written beside others: it follows that text, and learns none."""
        return copy(self._of(owner))

    def _of(self, owner: str) -> Memory | None:
        return self._by_owner.setdefault(owner, Memory()) if self.in_ram else self.kept
