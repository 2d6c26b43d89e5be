"""Eagle3Context: an EAGLE-3 head (Li et al. 2025, arXiv 2503.01840), a file of its own.

Its encoder fuses what enters three layers of the target; its decoder reads that row of a position together with the
next token.
"""

import llama_cpp
import numpy as np

from duo.config import ContextConfig
from duo.errors import DecodeAborted, DecodeError
from duo.llama.context import ABORTED, Context
from duo.llama.heads import HeadContext, floats_of, target_layers
from duo.llama.hidden_rows import Rows
from duo.llama.model import Model


class Eagle3Context(HeadContext):
    """See HeadContext."""

    _shift = 1  # it begins with the second token

    def __init__(self, model: Model, config: ContextConfig, target: Context) -> None:
        """See HeadContext."""
        super().__init__(model, config, target, target_layers(model))
        self._features: Rows = np.zeros((self._n_batch_max, self.rows.width), np.float32)
        self._encoded = self._batch_with(embd=floats_of(self._features), token=None)

    def _fused(self, rows: Rows) -> Rows:
        n = len(rows)
        self._features[:n] = rows
        position = max(0, self.n_past - self._shift)  # has no effect, but llama.cpp requires the next one
        self._positions[:n], self._outputs[:n] = range(position, position + n), n * b"\1"
        self._encoded.n_tokens = n
        self._abort_flag[0] = b"\0"
        if self._aborted:
            raise DecodeAborted("the context is aborted")
        with self.use() as pointer, self.call:
            status = llama_cpp.llama_encode(pointer, self._encoded)
        if status == ABORTED:
            raise DecodeAborted("aborted")
        if status:
            raise DecodeError(f"llama.cpp could not encode {n} rows of the target ({status})")
        return self._hidden_rows(n)
