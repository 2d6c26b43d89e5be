"""HeadContext: what EAGLE-3 heads, MTP layers and block drafts share: they draft from hidden rows of their target.

`eagle3`, `mtp` and `block` have the kinds, which differ in the rows that they read, and in their caches.
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np

from duo.config import ContextConfig
from duo.errors import DecodeError, ModelError
from duo.llama.block_shape import Block
from duo.llama.build import CPU
from duo.llama.context import Context, floats_at, of_last
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.gguf_header import DFLASH, EAGLE3, named, shape_of
from duo.llama.hidden_rows import N_ROWS, HiddenRows, Rows, functions, grown
from duo.llama.model import Model
from duo.llama.sequences import Logits, SavedState

# Architectures of targets whose graphs give what enters their layers (src/models, t_layer_inp), and of those, the ones
# that give the last row, too (t_h_nextn). llama.cpp ends the process if a graph does not.
_GIVE_LAST = (
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",
    "qwen3next",
)  # fmt: skip
_GIVE_LAYERS = (
    *_GIVE_LAST, "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "minimax-01", "minimax-m2", "muse-glimmer",
    "nanbeige", "qwen3", "qwen3moe", "qwen4exp",
)  # fmt: skip
_N_LAYERS = 3  # of the target, which an EAGLE-3 head reads
_ALIKE = "place both alike (draft_n_gpu_layers, draft_devices)"
LOST = "llama.cpp returned no hidden rows of the target"


def check_pair(target: Model, head: Model) -> None:
    """Raise ModelError unless `head` was made for `target`, or if this build of llama.cpp has no heads."""
    functions()
    if head.header.architecture == DFLASH:
        Block.of(head.header)
    if head is not target and (misfit := next(_misfits(target, head), "")):
        raise ModelError(f"{head.path.name}: {misfit}")


def _misfits(target: Model, head: Model) -> Iterator[str]:
    """Why a head cannot draft for a target."""
    name, architecture = target.path.name, target.header.architecture
    if difference := vocabulary_difference(target, head):
        yield f"a head for another vocabulary than that of {name}: {difference}"
    if head.has_mtp:
        made_for, given = shape_of(head.header), shape_of(target.header)
        if made_for != given:
            yield f"the MTP head of {made_for}, {name} is {given}"
        if head.shares_cache and (target.is_remote or not target.places - {CPU} <= head.places):
            where = "which must not be on RPC servers" if target.is_remote else _ALIKE
            yield f"it uses the cache of {name}: {where}"
        return
    if architecture not in _GIVE_LAYERS:
        yield f"llama.cpp gives {named(head.head_kind)} no hidden rows of a {architecture} model"
    is_eagle3 = head.header.architecture == EAGLE3
    if (width := head.header.number("target_hidden_size" if is_eagle3 else "embedding_length")) != target.n_embd:
        yield f"a head of a model with hidden rows of {width}, {name} has {target.n_embd}"
    layers, n_most = target_layers(head), target.n_layer if architecture in _GIVE_LAST else target.n_layer - 1
    if not layers or (is_eagle3 and len(layers) != _N_LAYERS) or max(layers) > n_most:
        yield f"a head that reads layers {', '.join(map(str, layers))}: {name} has {target.n_layer}"
    own = {"token_embd.weight", "output.weight"} <= head.header.tensors.keys()
    if not own and head.layer_places != target.layer_places:
        yield f"it uses the embedding or output of {name}: {_ALIKE}"


def target_layers(head: Model) -> list[int]:
    """The layers of its target that the head reads."""
    return head.header.numbers("target_layers")


class HeadContext(Context):
    """The cache of a head. To the engine, it is a draft's context: it decodes tokens and returns logits.

    The row at position i is decoded from token i and a hidden row of position i - 1: the target's, if the target has
    decoded that token and the text has accepted it (see follow()), else the head's own, as for deeper candidates.
    What the head has decoded from a row of its own is decoded again when the target's is there. `depth`: on how many
    rows of its own the last logits build, one from another. `rows`: those of the target.
    """

    depth = 0
    can_score = True  # whether decode() returns more rows than the last
    _shift = 0  # position i of the text is i - _shift of its cache

    def __init__(self, model: Model, config: ContextConfig, target: Context, layers: list[int], **more: Any) -> None:
        """`target`: its context, which from now on keeps the hidden rows of `layers`. Raises as Context does."""
        self._call = functions()
        super().__init__(model, config, ctx_other=target.pointer, n_rs_seq=0, **more)
        self.n_rollback = None  # the layers of a head have attention only
        self._target, self._n_accepted, self._n_real = target, 0, 0
        self._n_outputs_max = config.n_outputs_max
        self.rows = HiddenRows(target, layers)
        self._own: Rows = np.zeros((N_ROWS, model.n_embd_out), np.float32)  # by position + 1, too
        self._depths = [0]  # of the head's rows, how many of its own each builds on, and itself
        self._inputs: Rows = np.zeros((self._n_batch_max, model.n_embd_out), np.float32)
        self._batch = self._batch_with(embd=floats_of(self._inputs))
        self._call.llama_set_embeddings_nextn(self.pointer, True, True)

    def _batch_with(self, **other: Any) -> Any:
        """The context's batch, with `other` fields."""
        fields = {name: getattr(self._batch, name) for name, *_ in llama_cpp.llama_batch._fields_}
        return llama_cpp.llama_batch(**fields | other)

    def close(self) -> None:
        """See Handle. The target keeps no more rows."""
        if not self.closed:
            self.rows.close()
        super().close()

    def follow(self, n_accepted: int) -> None:
        """The text has `n_accepted` tokens, whose hidden rows may be used as soon as the target has decoded them."""
        self._n_accepted = n_accepted
        if self.n_past > self._n_real and self._n_known >= self._n_real:
            self.rollback(self._n_real)

    @property
    def first_known(self) -> int:
        """The first position of a text that the target has restored which the head can read."""
        return self.rows.first + 1 if self.rows.first else 0

    @property
    def _n_known(self) -> int:
        """Accepted tokens that the target has decoded: their hidden rows are there."""
        return min(self._n_accepted, self._target.n_past)

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """See Context.decode(). Rows that the head cannot compute are zero.

        llama.cpp's graphs of heads compute all rows, and return the first instead of those that were asked for. So all
        of a batch are asked for or, if it is long, none, and the last ones are decoded by themselves.
        """
        if self.rows.is_lost:
            raise DecodeError(LOST)
        if len(tokens) > self._n_outputs_max and n_rows:
            self._read(tokens[:-n_rows], 0)
            tokens = tokens[-n_rows:]
        rows = self._read(tokens, n_rows)
        if (n_lacking := n_rows - len(rows)) > 0:
            return np.concatenate([np.zeros((n_lacking, self.n_vocab), np.float32), rows])
        return rows[-n_lacking:]

    def _read(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode a batch, and return the logits of the last `n_rows` tokens or more; fewer if it has fewer rows."""
        first, end = self.n_past, self.n_past + len(tokens)
        begin = first + (self._shift if not first and end > 1 else 0)  # the first token, if it is alone, is not kept
        n, self._own = end - begin, grown(self._own, end + 1)
        n_real = max(0, min(n, self._n_known + 1 - begin))
        if n_real:
            self._inputs[:n_real] = self._fused(self.rows.between(begin, begin + n_real))
        self._inputs[n_real:n] = self._own[begin + n_real : end]
        self._depths += (end + 1 - len(self._depths)) * [0]
        depths = [*n_real * [0], *self._depths[begin + n_real : end]]
        position, n_outputs = max(0, begin - self._shift), n if n_rows else 0
        self._decode(tokens[begin - first :], range(position, position + n), of_last(n, n_outputs))
        if n_rows:
            self._own[begin + 1 : end + 1] = self._hidden_rows(n)
        self._depths[begin + 1 : end + 1] = [depth + 1 for depth in depths]
        self.depth = depths[-1]
        if begin < self._shift:
            self._forget(0)
        if self._n_real == first:
            self._n_real = begin + n_real
        self._past[0] = end
        return self._logits(n_outputs)

    def _hidden_rows(self, n: int) -> Rows:
        """The first `n` rows that the head's last decode or encode gives."""
        return floats_at(self._call.llama_get_embeddings_nextn(self.pointer), n, self._inputs.shape[1])

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        """See Context.decode_each(): a head has no branches."""
        return self.decode([token for _, token in tokens], len(tokens))

    def _fused(self, rows: Rows) -> Rows:
        """The rows that the decoder reads for these rows of the target."""
        return rows

    def save(self) -> SavedState:
        """See Context.save(): with the rows that belong to its text, and to the target's."""
        own, depths = self._own[: self.n_past + 1].copy(), self._depths[: self.n_past + 1]
        more = (own, depths, self._n_real, *self.rows.save(max(self.n_past, self._target.n_past)))
        return super().save()._replace(more=more)

    def load(self, state: SavedState) -> bool:
        """See Context.load()."""
        restored = super().load(state)
        own, depths, n_real, *rows = state.more
        self.rows.restore(*rows)
        self._own, self._depths, self._n_real = grown(own, len(self._own)), [*depths], n_real if restored else 0
        return restored

    def skip(self, n: int) -> None:
        """Leave out the next `n` tokens, and forget those before them: the head knows only what follows."""
        self._forget(0)
        self._past[0] += n
        self._n_real = self.n_past

    def rollback(self, n_past: int) -> None:
        """See Context.rollback()."""
        if n_past < self.n_past:
            self._forget(n_past - self._shift)
            self._past[0], self._n_real = n_past, min(self._n_real, n_past)

    def reset(self) -> None:
        """See Context.reset(): the target may use the same cache."""
        self.rollback(0)

    def _holds(self, *_: int) -> bool:
        return True  # the cells of a head are not those of the text

    def _forget(self, position: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory(), 0, max(0, position), -1)


def floats_of(array: Rows) -> Any:
    """The address of its memory."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
