"""The contexts of layers for multi-token prediction (MTP, DeepSeek-AI 2024, arXiv 2412.19437).

They are in the target's file, or in one of their own, and read the last row of the target with the next token.
"""

from collections.abc import Sequence

import llama_cpp

from duo.config import ContextConfig
from duo.errors import DecodeError
from duo.llama.context import Context, of_last
from duo.llama.gguf_header import n_mtp
from duo.llama.heads import HeadContext
from duo.llama.hidden_rows import grown
from duo.llama.model import Model
from duo.llama.sequences import Logits


class MtpContext(HeadContext):
    """The context of one MTP layer, or of several that one decode runs together."""

    def __init__(self, model: Model, config: ContextConfig, target: Context) -> None:
        """See HeadContext."""
        super().__init__(model, config, target, [target.model.n_layer], ctx_type=llama_cpp.LLAMA_CONTEXT_TYPE_MTP)


class SharedHeadContext(MtpContext):
    """The context of a head that has no cache: it reads the target's, as the assistants of Gemma 4.

    Only the last token is decoded, at the position that the target decodes next. The candidates after it are, too.
    """

    can_score = False

    def _read(self, tokens: Sequence[int], n_rows: int) -> Logits:
        last, end = self.n_past + len(tokens) - 1, self.n_past + len(tokens)
        if n_rows:
            self._own, is_real = grown(self._own, end + 1), last <= self._n_known
            self._depths += (end + 1 - len(self._depths)) * [0]
            self._inputs[0] = self.rows.between(last, last + 1)[0] if is_real else self._own[last]
            self._decode(tokens[-1:], (self._target.n_past,), of_last(1, 1))
            self._own[end] = self._hidden_rows(1)[0]
            self.depth = 0 if is_real else self._depths[last]
            self._depths[end] = self.depth + 1
        self._past[0] = end
        self._n_real = min(end, max(self._n_real, self._n_known + 1))
        return self._logits(min(n_rows, 1))

    def skip(self, n: int) -> None:
        """See HeadContext.skip()."""
        self._past[0] += n

    def rollback(self, n_past: int) -> None:
        """See Context.rollback()."""
        self._past[0], self._n_real = min(self.n_past, n_past), min(self._n_real, n_past)


class ChainedHeadContext(MtpContext):
    """The context of several MTP layers, each of which makes the candidates of one depth, as Step 3.5 and MiMo V2.

    All of them read what is accepted. For each further candidate, the next layer reads the candidates so far again,
    with rows of those before it.
    """

    def __init__(self, model: Model, config: ContextConfig, target: Context) -> None:
        """See HeadContext."""
        super().__init__(model, config, target)
        self._n_mtp = n_mtp(model.header)
        self._chain: list[int] = []  # the last token that has a row of the target, and the candidates after it

    def _read(self, tokens: Sequence[int], n_rows: int) -> Logits:
        first, end = self.n_past, self.n_past + len(tokens)
        n_real = self._n_known + 1 - first
        if n_real <= 0:
            return self._read_chain(tokens, n_rows)
        if n_real < len(tokens):
            self._read(tokens[:n_real], 1)
            return self._read(tokens[n_real:], n_rows)
        done = self._n_real
        for layer in reversed(range(self._n_mtp)):
            self._begin(layer, first, done)
            rows = super()._read(tokens, n_rows if layer == 0 else 0)
        self._chain, self._n_real = [tokens[-1]], end
        return rows

    def _read_chain(self, tokens: Sequence[int], n_rows: int) -> Logits:
        if len(self._chain) + len(tokens) > self._n_outputs_max:
            raise DecodeError(f"more than {self._n_outputs_max} candidates in a row by {self._n_mtp} layers")
        self._chain += tokens
        end = self.n_past + len(tokens)
        base, layer = end - len(self._chain), min(len(self._chain), self._n_mtp) - 1
        own = self._own[base + 1 : end].copy()
        self._begin(layer, base, base)
        rows = super()._read(self._chain, n_rows)
        self._own[base + 1 : end], self._n_real = own, base  # of that token, only this layer has a cell
        self._call.llama_set_nextn_layer_offset(self.pointer, 0)
        return rows

    def _begin(self, layer: int, first: int, n_real: int) -> None:
        self._forget(first)
        self._past[0], self._n_real = first, n_real
        self._call.llama_set_nextn_layer_offset(self.pointer, layer)

    def rollback(self, n_past: int) -> None:
        """See Context.rollback()."""
        if n_past < self.n_past:
            del self._chain[max(0, len(self._chain) - (self.n_past - n_past)) :]
        super().rollback(n_past)
