"""BlockContext: a block draft (DFlash, DSpark, DFlash2), which makes all candidates of a block in one decode.

Its cache holds what it makes of the target's hidden rows, which are injected, one for each accepted token. A block is
the last accepted token, the *anchor*, and masks after it, each of which becomes a candidate. DFlash (arXiv 2602.06036)
makes them independently of each other. DSpark adds what the token before each makes likely (a *Markov head*), and may
know how likely each is to be accepted. DFlash2 returns the best tokens of each position, and a score for each pair.
"""

import math
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np

from duo.config import ContextConfig
from duo.errors import DecodeError
from duo.llama.block_shape import Block
from duo.llama.context import Context, of_last
from duo.llama.heads import LOST, HeadContext, floats_of, target_layers
from duo.llama.hidden_rows import Rows
from duo.llama.model import Model
from duo.llama.sequences import Logits, SavedState

_SURE = 8.0


class BlockContext(HeadContext):
    """The cache of a block draft: position i has the hidden row of token i, or is that of a block being decoded."""

    def __init__(self, model: Model, config: ContextConfig, target: Context) -> None:
        """See HeadContext."""
        super().__init__(model, config, target, target_layers(model))
        self.block = block = Block.of(model.header)
        most, sections = self._n_batch_max, 4 * model.header.has("rope.dimension_sections")
        self._features: Rows = np.zeros((most, self.rows.width), np.float32)
        self._sections = (llama_cpp.llama_pos * (sections * most))()  # of M-RoPE: time, height, width, and none
        more = {"pos": self._sections} if sections else {}
        self._injected = self._batch_with(embd=floats_of(self._features), token=None, **more)
        self._batch = self._batch_with(embd=None)
        self._call.llama_set_embeddings_nextn(self.pointer, True, not block.top_k)
        llama_cpp.llama_set_causal_attn(self.pointer, block.is_causal)

    @property
    def _n_known(self) -> int:
        """Rows that may be injected: the last accepted token begins a block."""
        return min(self._n_accepted - 1, self._target.n_past)

    @property
    def first_known(self) -> int:
        """See HeadContext."""
        return self.rows.first

    def inject(self) -> int:
        """Read the rows of all accepted tokens but the last. Returns how many were new."""
        before, most = self.n_past, self._n_batch_max
        if self.rows.is_lost:
            raise DecodeError(LOST)
        while (first := self.n_past) < (end := min(self._n_known, self.n_past + most)):
            n = end - first
            self._features[:n] = self.rows.between(first + 1, end + 1)
            if self._sections:  # one after another
                self._sections[: 4 * n] = [*3 * [*range(first, end)], *n * [0]]
            self._batch, own = self._injected, self._batch
            try:
                self._decode(n * [0], range(first, end), of_last(n, 0))
            finally:
                self._batch = own
            self._past[0] = self._n_real = end
        return self.n_past - before

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """Decode a block after the rows that are known, and forget it; the last `n_rows` of logits, or of DFlash2's.

        llama.cpp adds nothing of a Markov head if the block has more tokens than it was trained for.
        """
        self.inject()
        tokens = tokens[-self.block.n_most - 1 :]
        first, n = self.n_past, len(tokens)
        try:
            self._decode(tokens, range(first, first + n), of_last(n, 0 if self.block.top_k else n))
        finally:
            self._forget(first)
        return self._hidden_rows(n)[n - n_rows :] if self.block.top_k else self._logits(n)[n - n_rows :]

    def draft(self, anchor: int, n: int, choose: Callable[[Logits, float | None], int]) -> None:
        """Make `n` candidates, at most `block.n_most`, in one decode.

        `choose` gets the logits `[n_vocab]` of each in turn, and what DSpark says of its confidence, as a gap of
        logits, and returns its token.
        """
        block = self.block
        tokens = [anchor, *(n - block.from_anchor) * [block.mask]]
        rows = self.decode(tokens, n)
        if block.top_k:
            self._walk(rows, choose)
            return
        chances = self._hidden_rows(len(tokens))[-n:, 0] if block.has_confidence else n * [None]
        for row, chance in zip(rows, chances, strict=True):
            choose(row, None if chance is None else _as_gap(float(chance)))

    def _walk(self, rows: Rows, choose: Callable[[Logits, float | None], int]) -> None:
        """Choose in each of DFlash2's rows, whose scores depend on which was chosen in the one before."""
        chosen, k = 0, self.block.top_k
        for row in rows:
            tokens, scores = row[:k].astype(int), row[k * (1 + chosen) : k * (2 + chosen)]
            logits = np.full(self.n_vocab, -np.inf, np.float32)
            logits[tokens] = scores
            chosen = int((tokens == choose(logits, None)).argmax())

    def save(self) -> SavedState:
        """See Context.save(): its cells need no rows."""
        return Context.save(self)

    def load(self, state: SavedState) -> bool:
        """See Context.load()."""
        restored = Context.load(self, state)
        self._n_real = self.n_past
        return restored


def _as_gap(chance: float) -> float:
    """The gap of two logits of which Acceptance assumes this chance, until it knows better."""
    return min(max(0.0, -1.5 * math.log(max(1 - chance, 1e-3) / 0.6)), _SURE)
