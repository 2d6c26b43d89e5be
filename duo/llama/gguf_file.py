"""What a model will take, from the head of its file: its layers, their KV cache, the buffers to compute with."""

from __future__ import annotations

import ctypes
import functools
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from llama_cpp._ggml import libggml

from duo.config import ContextConfig, ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama import library
from duo.llama.context import CACHE_TYPES
from duo.llama.handle import Handle

# gguf.h, enum gguf_type
_INTEGERS = {
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
}
_STRING, _ARRAY = 8, 9

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
# llama-arch.cpp, LLM_TENSOR_LAYER_INPUT: one row is read for a token, and llama.cpp leaves it on the host.
_INPUT = re.compile(r"(token_embd|token_embd_norm|per_layer_token_embd|position_embd|token_types)\.")
_MOST_LAYERS = 512  # llama-hparams.h, LLAMA_MAX_LAYERS
_CELLS = 256  # llama.cpp rounds the length of a context up to a multiple of this
_COPIES = 4  # ggml-backend.cpp, GGML_SCHED_MAX_COPIES: of what goes from one device to the next


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of one model, in bytes unless said otherwise."""

    layers: tuple[int, ...]  # weights of each layer, first to last
    output: int  # weights of the output layer, the token embedding again where the two are one tensor
    n_bytes: int  # all weights of the file
    cache_widths: tuple[tuple[int, int], ...]  # values that one token takes in each layer's K and V cache
    n_vocab: int
    n_embd: int
    n_head: int
    n_ff: int  # values between the halves of the widest feed-forward layer; of all experts that one token uses

    def cache_bytes(self, config: ContextConfig) -> tuple[int, ...]:
        """KV cache of each layer. Raises UsageError for a cache type that llama.cpp does not have.

        Sliding windows take the whole length, as duo asks for. The states of recurrent layers, a few MiB, are left out.
        """
        for kind in (config.type_k, config.type_v):
            if kind not in CACHE_TYPES:
                raise UsageError(f"no such cache type: {kind} (one of {', '.join(CACHE_TYPES)})")
        cells = -(-config.n_ctx // _CELLS) * _CELLS
        per_k, per_v = CACHE_TYPES[config.type_k][1], CACHE_TYPES[config.type_v][1]
        return tuple(int(cells * (k * per_k + v * per_v)) for k, v in self.cache_widths)

    def compute_bytes(self, config: ContextConfig) -> int:
        """An estimate, meant to be too high, of the buffers that each device with layers needs to compute with.

        Float32 for a batch of n_ubatch tokens: both halves of a feed-forward layer, six times the embedding (the
        residual, the normed one, Q, K, V and a result), the attention mask in float16, and what goes to the next
        device in four copies. Then the logits, and without flash attention the scores of all heads.
        """
        n_tokens = min(config.n_ubatch, config.n_batch)
        mask = 2 * config.n_ctx
        per_token = 4 * (2 * self.n_ff + 6 * self.n_embd) + mask + _COPIES * (4 * self.n_embd + mask)
        if config.flash_attn == "off":
            per_token += 4 * self.n_head * config.n_ctx
        return n_tokens * per_token + 4 * self.n_vocab * config.n_outputs_max


def model_size(config: ModelConfig) -> ModelSize:
    """Read the sizes from the heads of all files of the model; its weights are not touched.

    Layers that are named in a way that is not known here share the bytes evenly. Raises ModelError for a file that
    is missing or is not GGUF.
    """
    first, *others = config.shards
    with closing(_File(first)) as file:
        tensors = file.tensors()
        for path in others:
            with closing(_File(path)) as part:
                tensors |= part.tensors()
        return _model_size(file, tensors)


def _model_size(file: _File, tensors: dict[str, int]) -> ModelSize:
    layers, output = _share_out(tensors, file.number("block_count"))
    n_head, n_embd = file.number("attention.head_count"), file.number("embedding_length")
    n_used = file.number("expert_used_count")
    return ModelSize(
        layers=layers,
        output=output,
        n_bytes=sum(tensors.values()),
        cache_widths=_cache_widths(file, len(layers)),
        n_vocab=file.count("tokenizer.ggml.tokens"),
        n_embd=n_embd,
        n_head=n_head,
        n_ff=max(file.number("feed_forward_length"), n_used * file.number("expert_feed_forward_length")),
    )


def _share_out(tensors: dict[str, int], n_layer: int) -> tuple[tuple[int, ...], int]:
    """Bytes of each layer, and of the output layer."""
    layers = [0] * (n_layer if n_layer <= _MOST_LAYERS else 0)
    output = unknown = 0
    for name, size in tensors.items():
        if match := _LAYER.search(name):
            if int(match[1]) < len(layers):
                layers[int(match[1])] += size
            else:
                unknown += size
        elif not _INPUT.match(name):
            output += size
    if not any(layers):  # named as no model of llama.cpp's
        unknown, output = unknown + output, 0
    elif "output.weight" not in tensors:
        output += tensors.get("token_embd.weight", 0)
    each, odd = divmod(unknown, max(1, len(layers)))
    return tuple(size + each + (i < odd) for i, size in enumerate(layers)), output


def _cache_widths(file: _File, n_layer: int) -> tuple[tuple[int, int], ...]:
    """K and V values of a token in each layer."""
    heads = file.numbers("attention.head_count") or [0]
    per_head = file.number("embedding_length") // max(1, *heads)
    k = file.number("attention.key_length") or per_head
    v = file.number("attention.value_length") or per_head
    if file.number("attention.key_length_mla"):
        v = 0  # latent attention keeps both in K
    heads_kv = file.numbers("attention.head_count_kv") or heads
    if len(heads_kv) == 1:
        heads_kv *= n_layer
    return tuple((k * n, v * n) for n in (heads_kv + [0] * n_layer)[:n_layer])


class _File(Handle):
    """The head of one GGUF file: names and sizes of its tensors, and what it says of the model."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        pointer = _gguf().gguf_init_from_file(bytes(path), _InitParams(no_alloc=True))
        if not pointer:
            raise ModelError(f"{path}: this is no GGUF file, or a damaged one: fetch it again")
        super().__init__(pointer, _gguf().gguf_free)
        self._architecture = self._text("general.architecture")

    def tensors(self) -> dict[str, int]:
        """Bytes of each tensor, by its name."""
        lib, pointer = _gguf(), self.pointer
        return {
            lib.gguf_get_tensor_name(pointer, i).decode("utf-8", "replace"): lib.gguf_get_tensor_size(pointer, i)
            for i in range(lib.gguf_get_n_tensors(pointer))
        }

    def number(self, key: str) -> int:
        """The greatest of numbers(); 0 if there are none."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """The whole number, or the array of them, that the architecture's `key` has; none below 0 and at worst none."""
        index = _gguf().gguf_find_key(self.pointer, f"{self._architecture}.{key}".encode())
        if index < 0:
            return []
        kind = _gguf().gguf_get_kv_type(self.pointer, index)
        if kind == _ARRAY:
            kind = _gguf().gguf_get_arr_type(self.pointer, index)
        if kind not in _INTEGERS:
            return []
        # A single value is stored as an array of one.
        n, address = _gguf().gguf_get_arr_n(self.pointer, index), _gguf().gguf_get_arr_data(self.pointer, index)
        return [max(0, value) for value in (_INTEGERS[kind] * n).from_address(address)] if n else []

    def count(self, key: str) -> int:
        """How many values the array `key` has; 0 if there is none."""
        index = _gguf().gguf_find_key(self.pointer, key.encode())
        return int(_gguf().gguf_get_arr_n(self.pointer, index)) if index >= 0 else 0

    def _text(self, key: str) -> str:
        index = _gguf().gguf_find_key(self.pointer, key.encode())
        if index < 0 or _gguf().gguf_get_kv_type(self.pointer, index) != _STRING:
            return ""
        return str(_gguf().gguf_get_val_str(self.pointer, index).decode("utf-8", "replace"))


class _InitParams(ctypes.Structure):
    """gguf.h, struct gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@functools.cache
def _gguf() -> ctypes.CDLL:
    # ctypes takes ints for pointers unless told.
    library.start()
    lib: ctypes.CDLL = libggml
    pointer, index = ctypes.c_void_p, ctypes.c_int64
    for name, result, *arguments in (
        ("gguf_init_from_file", pointer, ctypes.c_char_p, _InitParams),
        ("gguf_free", None, pointer),
        ("gguf_get_n_tensors", index, pointer),
        ("gguf_get_tensor_name", ctypes.c_char_p, pointer, index),
        ("gguf_get_tensor_size", ctypes.c_size_t, pointer, index),
        ("gguf_find_key", index, pointer, ctypes.c_char_p),
        ("gguf_get_kv_type", ctypes.c_int, pointer, index),
        ("gguf_get_arr_type", ctypes.c_int, pointer, index),
        ("gguf_get_arr_n", ctypes.c_size_t, pointer, index),
        ("gguf_get_arr_data", pointer, pointer, index),
        ("gguf_get_val_str", ctypes.c_char_p, pointer, index),
    ):
        getattr(lib, name).argtypes = arguments
        getattr(lib, name).restype = result
    return lib
