"""A model of five tokens whose context ends at every third one, so that a text is a sequence of short texts."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from duo.config import SamplingConfig
from duo.errors import DecodeAborted
from duo.speculation.sampling import Chain
from duo.speculation.types import Floats, Logits

N_VOCAB = 5
LENGTH = 3
SEQUENCES = list(product(range(N_VOCAB), repeat=LENGTH))
Table = dict[tuple[int, ...], Logits]


def random_table(seed: int, spread: float = 1.5) -> Table:
    """Logits after every beginning of a sequence."""
    dice = np.random.default_rng(seed)
    prefixes = [prefix for n in range(LENGTH) for prefix in product(range(N_VOCAB), repeat=n)]
    return {prefix: (spread * dice.standard_normal(N_VOCAB)).astype(np.float32) for prefix in prefixes}


TARGET = random_table(1)

# The logits of each kind of draft.
DRAFTS: dict[str, Table] = {
    "identical": TARGET,
    "good": {prefix: logits + 0.4 * random_table(2, 1.0)[prefix] for prefix, logits in TARGET.items()},
    "bad": random_table(3),
    "adversarial": {prefix: -logits for prefix, logits in TARGET.items()},
}


def chances(config: SamplingConfig, table: Table = TARGET) -> Floats:
    """The exact probability of each of SEQUENCES after each last token of the one before: `[N_VOCAB, 125]`."""
    chain, found = Chain(config), np.ones((N_VOCAB, len(SEQUENCES)))
    for before, (i, sequence) in product(range(N_VOCAB), enumerate(SEQUENCES)):
        for n, token in enumerate(sequence):
            text = (before, *sequence[:n])
            recent = text[-chain.n_recent :] if chain.n_recent else ()
            found[before, i] *= chain.distribution(table[sequence[:n]], recent).of(token)
    return found


class TableContext:
    """A Decoder with a table of logits. `during` is called in the middle of every decode."""

    n_ctx = 1 << 30
    n_batch = 64
    n_vocab = N_VOCAB
    n_rollback: int | None = None
    was_first = False

    def __init__(self, table: Table, n_branches: int = 0) -> None:
        self.during: Callable[[], object] = lambda: None
        self.n_branches = n_branches
        self._texts: dict[int, list[int]] = {0: []}
        self._table = table
        self._aborted = False

    @property
    def n_past(self) -> int:
        return len(self._texts[0])

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        self._begin()
        text = self._texts[0]
        text += tokens
        rows = np.empty((n_rows, N_VOCAB), np.float32)
        for i, n in enumerate(range(len(text) - n_rows + 1, len(text) + 1)):
            rows[i] = self._table[tuple(text[n - n % LENGTH : n])]
        return rows

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        self._begin()
        texts = [self._texts[sequence] for sequence, _ in tokens]
        for text, (_, token) in zip(texts, tokens, strict=True):
            text.append(token)
        return np.stack([self._table[tuple(text[len(text) - len(text) % LENGTH :])] for text in texts])

    def _begin(self) -> None:
        if self._aborted:
            raise DecodeAborted("aborted")
        self.during()

    def branch(self, sequence: int, n_past: int) -> None:
        self._texts[sequence] = self._texts[0][:n_past]

    def adopt(self, sequence: int) -> None:
        self._texts[0] = self._texts.pop(sequence)

    def drop(self, sequence: int) -> None:
        self._texts.pop(sequence, None)

    def rollback(self, n_past: int) -> None:
        del self._texts[0][n_past:]

    def abort(self) -> None:
        self._aborted = True

    def resume(self) -> None:
        self._aborted = False

    def cancel(self) -> None: ...
    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...
