"""Sequences of one KV cache: branches of a text, and texts beside it, which share decodes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from duo.llama.lifeline import Handle
from duo.llama.limits import available_bytes

Logits = npt.NDArray[np.float32]


class SavedState(NamedTuple):
    """A copy of a text's cells, and how many tokens they hold; of a head, also what else it needs."""

    cells: npt.NDArray[np.uint8]
    n_past: int
    more: tuple[Any, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size of the copy, with memory that is not used yet."""
        owner = self.cells if self.cells.base is None else self.cells.base
        return owner.nbytes + sum(getattr(part, "nbytes", 0) for part in self.more)


class Sequences(Handle):
    """The part of a Context that holds several sequences, for models that can roll back any number of tokens."""

    _past: dict[int, int]  # tokens in each sequence; in a branch, those shared with the text included
    alternatives: range  # sequences for alternatives to candidates
    n_ctx: int
    n_batch: int
    n_vocab: int
    was_first: bool
    on_decoded: Callable[[int, int], None]  # called with what sequence 0 has decoded: its first position, and tokens
    on_loaded: Callable[[int], None]  # called with the tokens of sequence 0 whose hidden rows are not known

    def branch(self, sequence: int, n_past: int, of: int = 0) -> None:
        """Make `sequence` the first `n_past` tokens of sequence `of`, whose cells it shares."""
        self.drop(sequence)
        llama_cpp.llama_memory_seq_cp(self._memory(), of, sequence, 0, n_past)
        self._past[sequence] = n_past

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        """Append a token to each sequence of `tokens`: (sequence, token). Logits `[n, n_vocab]` as of decode()."""
        sequences = [sequence for sequence, _ in tokens]
        positions = [self._past[sequence] for sequence in sequences]
        self._decode([token for _, token in tokens], positions, b"\1" * len(tokens), [(one,) for one in sequences])
        self._past |= {sequence: position + 1 for sequence, position in zip(sequences, positions, strict=True)}
        return self._logits(len(tokens))

    def decode_with(self, tokens: Sequence[int], alternatives: Sequence[tuple[int, int]]) -> Logits:
        """Append the last accepted token and candidates, and decode `alternatives` to these: (position, token).

        The alternative at `position` i is to candidate i, tokens[i + 1], so it follows tokens[: i + 1], in a sequence
        of its own. Logits `[n, n_vocab]` as of decode(): after each token, then after each alternative. settle() must
        follow.
        """
        memory, n_past, n_rows = self._memory(), self._past[0], len(tokens) + len(alternatives)
        beside = list(zip(self.alternatives, alternatives, strict=False))
        sequences = [(0, *[own for own, (position, _) in beside if i <= position]) for i in range(len(tokens))]
        positions = [*range(n_past, n_past + len(tokens)), *[n_past + 1 + position for position, _ in alternatives]]
        for own, _ in beside:
            llama_cpp.llama_memory_seq_cp(memory, 0, own, 0, n_past)
        try:
            all_tokens = [*tokens, *[token for _, token in alternatives]]
            self._decode(all_tokens, positions, b"\1" * n_rows, [*sequences, *[(own,) for own, _ in beside]])
        except BaseException:  # llama.cpp forgets tokens of a decode that was aborted in one sequence each
            llama_cpp.llama_memory_seq_rm(memory, 0, self._past[0], -1)
            self._drop_alternatives()
            raise
        self._past[0] += len(tokens)
        return self._logits(n_rows)

    def settle(self, n_past: int, came_true: int = -1) -> None:
        """After decode_with(): the text is its first `n_past` tokens and, of this index, the alternative after them."""
        self.rollback(n_past)
        if came_true >= 0:
            llama_cpp.llama_memory_seq_cp(self._memory(), self.alternatives[came_true], 0, n_past, -1)
            self._past[0] += 1
        self._drop_alternatives()

    def _drop_alternatives(self) -> None:
        for sequence in self.alternatives:
            llama_cpp.llama_memory_seq_rm(self._memory(), sequence, -1, -1)

    def decode_parts(self, parts: Sequence[tuple[int, Sequence[int], int]]) -> list[Logits]:
        """Append several tokens to each sequence of `parts`: (sequence, tokens, rows). The logits of each part.

        They are `[rows, n_vocab]`, after the last tokens of the part; valid, and raises, as those of decode().
        """
        all_tokens, positions, outputs, sequences = list[int](), list[int](), b"", list[tuple[int, ...]]()
        order = sorted(range(len(parts)), key=lambda i: parts[i][0] != 0)  # sequence 0 first, for its hidden rows
        for sequence, tokens, n_rows in map(parts.__getitem__, order):
            n, n_past = len(tokens), self._past.get(sequence, 0)
            all_tokens += tokens
            positions += range(n_past, n_past + n)
            outputs += bytes(n - n_rows) + b"\1" * n_rows
            sequences += [(sequence,)] * n
        self._decode(all_tokens, positions, outputs, sequences)
        for sequence, tokens, _ in parts:
            if sequence == 0:
                self.on_decoded(self._past[0], len(tokens))
            self._past[sequence] = self._past.get(sequence, 0) + len(tokens)
        rows, found = self._logits(sum(n_rows for _, _, n_rows in parts)), dict[int, Logits]()
        for i in order:
            n_rows = parts[i][2]
            found[i], rows = rows[:n_rows], rows[n_rows:]
        return [found[i] for i in range(len(parts))]

    @contextmanager
    def alone(self, sequence: int) -> Iterator[None]:
        """Inside the block, the cells hold this sequence only, if the memory has room for copies of the others.

        Those that cannot be restored are empty after it. Without flash attention, each row of a batch computes with all
        cells up to the last one that is used.
        """
        memory, others = self._memory(), dict[int, SavedState]()
        beside = [one for one, n_past in self._past.items() if n_past and one != sequence]
        if sum(map(self.state_bytes, beside)) <= available_bytes() // 2:
            with suppress(MemoryError):
                others = {one: self.copy_of(one) for one in beside}
        for one in others:
            llama_cpp.llama_memory_seq_rm(memory, one, -1, -1)
            self._past[one] = 0
        try:
            yield
        finally:
            for one, state in others.items():
                if self.restore(state, one):
                    self._past[one] = state.n_past
                else:
                    llama_cpp.llama_memory_seq_rm(memory, one, -1, -1)

    def adopt(self, sequence: int) -> None:
        """Make sequence 0 what `sequence` is, which becomes empty."""
        memory = self._memory()
        llama_cpp.llama_memory_seq_rm(memory, 0, 0, -1)
        llama_cpp.llama_memory_seq_cp(memory, sequence, 0, 0, -1)
        self._past[0] = self._past.get(sequence, 0)
        self.on_loaded(self._past[0])
        self.drop(sequence)

    def drop(self, sequence: int) -> None:
        """Forget `sequence`, and free the cells that only it uses."""
        if self._past.pop(sequence, None) is not None:
            llama_cpp.llama_memory_seq_rm(self._memory(), sequence, -1, -1)

    def rollback(self, n_past: int) -> None:
        """Remove everything of the text from position `n_past` on."""
        raise NotImplementedError

    def _memory(self) -> Any:
        return llama_cpp.llama_get_memory(self.pointer)

    def _decode(
        self, tokens: Sequence[int], positions: Sequence[int], outputs: bytes, sequences: Sequence[tuple[int, ...]] = ()
    ) -> None:
        """Decode a batch of the text, or each token in its `sequences`; with logits where `outputs` is 1."""
        raise NotImplementedError

    def _logits(self, n_rows: int) -> Logits:
        raise NotImplementedError

    def state_bytes(self, sequence: int) -> int:
        """The size of a copy of a sequence's cells."""
        return int(llama_cpp.llama_state_seq_get_size(self.pointer, sequence))

    def copy_of(self, sequence: int) -> SavedState:
        """A copy of a sequence's cells."""
        raise NotImplementedError

    def restore(self, state: SavedState, sequence: int) -> bool:
        """Put such a copy into an empty sequence. False: llama.cpp cannot."""
        raise NotImplementedError

    def text(self, sequence: int) -> "TextSequence":
        """The text in `sequence`, beside sequence 0."""
        return TextSequence(self, sequence)


class TextSequence:
    """A text in a sequence beside sequence 0: what a Decoder is, but that it is decoded by decode_parts()."""

    n_rollback: int | None = None
    n_branches = 0
    can_save, is_windowed = True, False

    def __init__(self, context: Sequences, sequence: int) -> None:
        self._context, self.sequence = context, sequence
        self.n_ctx, self.n_batch, self.n_vocab = context.n_ctx, context.n_batch, context.n_vocab

    @property
    def was_first(self) -> bool:
        """See Context."""
        return self._context.was_first

    @property
    def n_past(self) -> int:
        """Tokens of the text in the cache."""
        return self._context._past.get(self.sequence, 0)

    def rollback(self, n_past: int) -> None:
        """Remove everything from position `n_past` on."""
        if not n_past:
            self._context.drop(self.sequence)
        elif n_past != self.n_past:
            llama_cpp.llama_memory_seq_rm(self._context._memory(), self.sequence, n_past, -1)
            self._context._past[self.sequence] = n_past

    @property
    def n_state_bytes(self) -> int:
        """The size of a copy."""
        return self._context.state_bytes(self.sequence)

    def save(self) -> SavedState:
        """A copy of the text's cells."""
        return self._context.copy_of(self.sequence)

    def load(self, state: SavedState) -> bool:
        """Hold what save() has copied. False: llama.cpp cannot restore it, and nothing is held."""
        self.rollback(0)
        restored = self._context.restore(state, self.sequence)
        self._context._past[self.sequence] = state.n_past
        if not restored:
            self.rollback(0)
        return restored
