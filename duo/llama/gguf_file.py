"""The memory that a model needs, from its file's header: layers, their KV cache, compute buffers."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass

from duo.config import ContextConfig, ModelConfig
from duo.llama.context import cache_type
from duo.llama.gguf_check import MAX_LAYERS
from duo.llama.gguf_head import Head

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
# llama-arch.cpp, LLM_TENSOR_LAYER_INPUT: one row is read per token, and llama.cpp keeps it on the host.
_INPUT = re.compile(r"(token_embd|token_embd_norm|per_layer_token_embd|position_embd|token_types)\.")
_CELLS = 256  # llama.cpp rounds the context size up to a multiple of this
_COPIES = 4  # ggml-backend.cpp, GGML_SCHED_MAX_COPIES: of the tensors that pass between devices


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of one model, in bytes unless stated otherwise."""

    layers: tuple[int, ...]  # weights of each layer, first to last
    output: int  # weights of the output layer; of the token embedding if that is the same tensor
    n_bytes: int  # all weights
    cache_widths: tuple[tuple[int, int], ...]  # values of one token in the K and V cache of each layer
    n_vocab: int
    n_embd: int
    n_head: int
    n_ff: int  # width of the widest feed-forward layer, over all experts that one token uses

    def cache_bytes(self, config: ContextConfig) -> tuple[int, ...]:
        """KV cache of each layer. Raises UsageError for an unknown cache type.

        Sliding windows count in full, as duo configures them. The states of recurrent layers, a few MiB, do not count.
        """
        cells = -(-config.n_ctx // _CELLS) * _CELLS
        per_k, per_v = cache_type(config.type_k)[1], cache_type(config.type_v)[1]
        return tuple(int(cells * (k * per_k + v * per_v)) for k, v in self.cache_widths)

    def compute_bytes(self, config: ContextConfig) -> int:
        """An upper estimate of the compute buffers of each device with layers.

        Float32 for a batch of n_ubatch tokens: both halves of a feed-forward layer, six times the embedding (the
        residual, the normed one, Q, K, V and a result), the attention mask in float16, and four copies of the tensors
        for the next device. Then the logits, and without flash attention the scores of all heads.
        """
        n_tokens = min(config.n_ubatch, config.n_batch)
        mask = 2 * config.n_ctx
        per_token = 4 * (2 * self.n_ff + 6 * self.n_embd) + mask + _COPIES * (4 * self.n_embd + mask)
        if config.flash_attn == "off":
            per_token += 4 * self.n_head * config.n_ctx
        return n_tokens * per_token + 4 * self.n_vocab * config.n_outputs_max


def model_size(config: ModelConfig) -> ModelSize:
    """Read the sizes from the headers of all files of the model, without its weights.

    The bytes of tensors with unknown names are spread evenly over all layers. Raises ModelError for a missing or
    invalid file.
    """
    first, *others = config.shards
    with closing(Head(first)) as file:
        tensors = file.tensors()
        for path in others:
            with closing(Head(path)) as part:
                tensors |= part.tensors()
        return _model_size(file, tensors)


def _model_size(file: Head, tensors: dict[str, int]) -> ModelSize:
    layers, output = _weights_by_layer(tensors, file.number("block_count"))
    n_head, n_embd = file.number("attention.head_count"), file.number("embedding_length")
    n_used = file.number("expert_used_count")
    return ModelSize(
        layers=layers,
        output=output,
        n_bytes=sum(tensors.values()),
        cache_widths=_cache_widths(file, len(layers)),
        n_vocab=file.count("tokenizer.ggml.tokens") or 0,
        n_embd=n_embd,
        n_head=n_head,
        n_ff=max(file.number("feed_forward_length"), n_used * file.number("expert_feed_forward_length")),
    )


def _weights_by_layer(tensors: dict[str, int], n_layer: int) -> tuple[tuple[int, ...], int]:
    """Bytes of each layer, and of the output layer."""
    layers = [0] * (n_layer if n_layer <= MAX_LAYERS else 0)
    output = unknown = 0
    for name, size in tensors.items():
        if match := _LAYER.search(name):
            if int(match[1]) < len(layers):
                layers[int(match[1])] += size
            else:
                unknown += size
        elif not _INPUT.match(name):
            output += size
    if not any(layers):  # none of the tensor names is llama.cpp's
        unknown, output = unknown + output, 0
    elif "output.weight" not in tensors:
        output += tensors.get("token_embd.weight", 0)
    each, odd = divmod(unknown, max(1, len(layers)))
    return tuple(size + each + (i < odd) for i, size in enumerate(layers)), output


def _cache_widths(file: Head, n_layer: int) -> tuple[tuple[int, int], ...]:
    """Values of one token in the K and V cache of each layer."""
    heads = file.numbers("attention.head_count") or [0]
    per_head = file.number("embedding_length") // max(1, *heads)
    k = file.number("attention.key_length") or per_head
    v = file.number("attention.value_length") or per_head
    if file.number("attention.key_length_mla"):
        v = 0  # multi-head latent attention stores both in K
    heads_kv = file.numbers("attention.head_count_kv") or heads
    if len(heads_kv) == 1:
        heads_kv *= n_layer
    return tuple((k * n, v * n) for n in (heads_kv + [0] * n_layer)[:n_layer])
