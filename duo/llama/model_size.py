"""The memory that a model needs, from its file's header: layers, their KV cache, compute buffers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from duo.config import ContextConfig, ModelConfig
from duo.llama.gguf_header import ASSISTANT, MAX_LAYERS, GgufHeader, head_kind

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
# A layer with tensors of the first kind and none of the second is recurrent: it has no KV cache.
_KIND = re.compile(r"^blk\.(\d+)\.(ssm_|attn_k\.)")
# llama-arch.cpp, LLM_TENSOR_LAYER_INPUT: one row is read per token, and llama.cpp keeps it on the host.
_INPUT = re.compile(r"(token_embd|token_embd_norm|per_layer_token_embd|position_embd|token_types)\.")
_COPIES = 4  # ggml-backend.cpp, GGML_SCHED_MAX_COPIES: of what a device receives, if there are several
BRANCH_CELLS = 32  # for each branch, besides those that it shares with the text: see Context.branch
_CELLS = 256  # of which the number of cells is a multiple

# ggml.h, enum ggml_type, and bytes per value of the cache types that llama.cpp accepts.
CACHE_TYPES: dict[str, tuple[int, float]] = {
    "f32": (0, 4),
    "f16": (1, 2),
    "bf16": (30, 2),
    "q8_0": (8, 34 / 32),
    "q5_1": (7, 24 / 32),
    "q5_0": (6, 22 / 32),
    "q4_1": (3, 20 / 32),
    "q4_0": (2, 18 / 32),
    "iq4_nl": (20, 18 / 32),
}


def n_cells(config: ContextConfig) -> int:
    """The number of cells, one per token: llama.cpp rounds it up."""
    return -(-(config.n_ctx + config.n_branches * BRANCH_CELLS) // _CELLS) * _CELLS


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of one model, in bytes unless stated otherwise."""

    layers: tuple[int, ...]  # weights of each layer, first to last
    output: int  # weights of the output layer; of the token embedding if that is the same tensor
    largest: int  # the largest tensor of any layer
    n_bytes: int  # all weights
    cache_widths: tuple[tuple[int, int], ...]  # values of one token in the K and V cache of each layer
    header: GgufHeader = field(compare=False)
    names: frozenset[str] = field(compare=False, default=frozenset())  # of all tensors

    def offloaded_bytes(self, n_layers: int) -> int:
        """Weights of the last `n_layers` layers and the output, which are on devices."""
        return sum(self.layers[len(self.layers) - n_layers :]) + self.output

    def cache_bytes(self, config: ContextConfig) -> tuple[int, ...]:
        """KV cache of each layer: sliding windows in full, the states of recurrent layers, a few MiB, not at all."""
        cells = n_cells(config)
        per_k, per_v = CACHE_TYPES[config.type_k][1], CACHE_TYPES[config.type_v][1]
        return tuple(int(cells * (k * per_k + v * per_v)) for k, v in self.cache_widths)

    def compute_bytes(self, config: ContextConfig, n_devices: int = 2) -> int:
        """An upper estimate of the compute buffers of each device with layers, of `n_devices` in use.

        For a batch of n_ubatch tokens: seven times the embedding (the residual, the normed one, Q and its gate, K, V
        and a result), and the embedding that comes from the host or the device before. Then the larger of the logits
        and of what a layer needs: the attention masks, and the larger of its feed-forward halves and, without flash
        attention, the scores of all heads. Float32; the masks are float16 with flash attention.
        """
        number, cells, flash = self.header.number, n_cells(config), config.flash_attn != "off"
        n_tokens = min(config.n_ubatch, config.n_batch, cells)
        n_copies = _COPIES if n_devices > 1 else 1
        n_masks = 2 if number("attention.sliding_window") else 1
        # Of the widest layer, over all experts that one token uses.
        n_ff = max(number("feed_forward_length"), number("expert_used_count") * number("expert_feed_forward_length"))
        embeddings = n_tokens * 4 * number("embedding_length") * (7 + n_copies)
        masks = n_tokens * (2 if flash else 4) * cells * n_masks * n_copies
        scores = 0 if flash else self.scores_bytes(config)
        logits = min(n_tokens, config.n_reserved) * 4 * len(self.header.tokens)
        return embeddings + max(logits, masks + max(scores, n_tokens * 4 * 2 * n_ff))

    def scores_bytes(self, config: ContextConfig) -> int:
        """The scores of all heads of a layer for a batch of n_ubatch tokens, without flash attention."""
        cells = n_cells(config)
        return min(config.n_ubatch, config.n_batch, cells) * 4 * self.header.number("attention.head_count") * cells

    def staging_bytes(self, config: ContextConfig) -> int:
        """More of them if layers stay on the host: in a prefill, tensors and caches are copied to a device in turn."""
        return max(self.largest, *self.cache_bytes(config), 0)


def model_size(config: ModelConfig, header: GgufHeader | None = None) -> ModelSize:
    """Read the sizes from the headers of all files of the model; `header`: the first. Raises ModelError."""
    header = header or GgufHeader(config.path)
    tensors = header.tensors | {
        name: size for path in config.shards[1:] for name, size in GgufHeader(path).tensors.items()
    }
    layers, output, largest = [0] * min(header.number("block_count"), MAX_LAYERS), 0, 0
    for name, size in tensors.items():
        match = _LAYER.search(name)
        if match:
            largest = max(largest, size)
        if match and layers:
            layers[min(int(match[1]), len(layers) - 1)] += size
        elif not _INPUT.match(name):
            output += size
    if "output.weight" not in tensors:
        output += tensors.get("token_embd.weight", 0)
    widths = _cache_widths(header, tensors, len(layers))
    return ModelSize(tuple(layers), output, largest, sum(tensors.values()), widths, header, frozenset(tensors))


def _cache_widths(header: GgufHeader, names: Iterable[str], n_layer: int) -> tuple[tuple[int, int], ...]:
    """Values of one token in the K and V cache of each layer."""
    heads = header.numbers("attention.head_count") or [0]
    per_head = header.number("embedding_length") // max(1, *heads)
    k = header.number("attention.key_length") or per_head
    v = header.number("attention.value_length") or per_head
    if header.number("attention.key_length_mla"):
        v = 0  # multi-header latent attention stores both in K
    heads_kv = header.numbers("attention.head_count_kv") or heads
    heads_kv = heads_kv * n_layer if len(heads_kv) == 1 else [*heads_kv, *[0] * n_layer]
    kinds = {match.groups() for match in map(_KIND.search, names) if match}
    recurrent = {int(i) for i, kind in kinds if kind == "ssm_" and (i, "attn_k.") not in kinds}
    if header.architecture == ASSISTANT:  # it has no cache
        return n_layer * ((0, 0),)
    if head_kind(header, set(names)):  # nor has it the layers of its target
        recurrent |= set(range(n_layer)) - {int(match[1]) for match in map(_LAYER.search, names) if match}
    return tuple((0, 0) if i in recurrent else (k * n, v * n) for i, n in enumerate(heads_kv[:n_layer]))
