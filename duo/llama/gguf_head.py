"""The header of a GGUF file: names and sizes of its tensors, and its metadata.

check_head() refuses values on which llama.cpp ends the process instead of reporting an error: it asserts them, divides
by them or allocates as much as they say. What is not checked here ends the process with one line, see
duo.llama.lifeline, as long as it is an assertion.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from duo.errors import ModelError
from duo.llama import library
from duo.llama.handle import Handle

# gguf.h, enum gguf_type
_INTEGERS: dict[int, Any] = {
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    7: ctypes.c_bool,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
}
_STRING, _ARRAY = 8, 9
_MAX_NUMBERS = 4096  # in an array: more than any model has layers
_MAX_TEXTS = 2**20  # more than any vocabulary has tokens

MAX_LAYERS = 512  # llama-hparams.h, LLAMA_MAX_LAYERS
_MAX_EXPERTS = 1024  # llama-hparams.h, LLAMA_MAX_EXPERTS
_MAX_WINDOW = 2**24  # tokens, for each of which llama.cpp reserves four bytes
_NO_WINDOW = 2**32 - 1
_NO_VOCABULARY = ("none", "no_vocab")  # llama.cpp would fill one with as many tokens as the file says
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
# Keys that llama.cpp divides by or steps with, and the architectures of which it does not: there 0 has a meaning.
_DIVISORS = {
    "attention.output_group_count": (),
    "experts_per_group": (),
    "full_attention_interval": (),
    "interleave_moe_layer_step": ("llama4",),
    "rope.dimension_count": (),
    "ssm.group_count": ("plamo2",),
    "ssm.time_step_rank": (),
    "wkv.head_size": (),
}
# Architectures of which llama.cpp divides by the number of heads, or by that of the experts that one token uses.
_BY_HEADS = ("deepseek2", "olmo2", "phimoe")
_BY_EXPERTS = ("glm4moe", "grovemoe", "llada-moe", "nemotron_h_moe", "qwen35moe", "qwen4exp")
_LINEAR = ("qwen35", "qwen35moe")  # llama.cpp reads tensors of their linear attention also if they are absent
_ONE_EXPERT = ("hunyuan_vl", "hunyuan-dense")  # llama.cpp ignores the experts of these if there is only one


class Head(Handle):
    """The header of one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises ModelError for a missing file, or one that is not a GGUF file."""
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        with library.collect_errors() as errors:
            pointer = _gguf().gguf_init_from_file(bytes(path), _InitParams(no_alloc=True))
        if not pointer:
            raise ModelError(f"{path}: {_unreadable(errors)}")
        super().__init__(pointer, _gguf().gguf_free)
        self.path = path
        self.architecture = self.text("general.architecture") or ""

    def tensors(self) -> dict[str, int]:
        """Bytes of each tensor, by name."""
        lib, pointer = _gguf(), self.pointer
        return {
            lib.gguf_get_tensor_name(pointer, i).decode("utf-8", "replace"): lib.gguf_get_tensor_size(pointer, i)
            for i in range(lib.gguf_get_n_tensors(pointer))
        }

    def number(self, key: str) -> int:
        """The maximum of numbers(); 0 if there are none."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """The integer, or the array of integers, of the architecture's `key`, none below 0; empty for anything else."""
        return [max(0, number) for number in self.values(f"{self.architecture}.{key}") if not isinstance(number, bytes)]

    def values(self, key: str) -> Sequence[int | bytes]:
        """The integers, truth values or texts of `key`, one or an array; empty if there are none, or too many."""
        lib, pointer, index = _gguf(), self.pointer, self._index(key)
        if index < 0:
            return []
        kind = lib.gguf_get_kv_type(pointer, index)
        if kind == _ARRAY:
            kind = lib.gguf_get_arr_type(pointer, index)
        n = lib.gguf_get_arr_n(pointer, index)  # a single value is stored as an array of one
        if kind == _STRING:
            return [lib.gguf_get_arr_str(pointer, index, i) for i in range(n)] if n <= _MAX_TEXTS else []
        if kind not in _INTEGERS or not n:
            return []
        return list((_INTEGERS[kind] * min(n, _MAX_NUMBERS)).from_address(lib.gguf_get_arr_data(pointer, index)))

    def has(self, key: str) -> bool:
        """Whether there is a value, of any type, for the architecture's `key`."""
        return self._index(f"{self.architecture}.{key}") >= 0

    def count(self, key: str) -> int | None:
        """Number of values of the array `key`; None if there is no such key."""
        index = self._index(key)
        return int(_gguf().gguf_get_arr_n(self.pointer, index)) if index >= 0 else None

    def text(self, key: str) -> str | None:
        """The text of `key`; None if there is no such key, or something else."""
        text = self._single(key)
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else None

    def integer(self, key: str) -> int | None:
        """The integer or the truth value of `key`; None if there is no such key, or something else."""
        number = self._single(key)
        return None if isinstance(number, bytes) else number

    def _single(self, key: str) -> int | bytes | None:
        return next(iter(self.values(key)), None) if self.count(key) == 1 else None

    def _index(self, key: str) -> int:
        """That of `key`; negative: there is no such key."""
        return int(_gguf().gguf_find_key(self.pointer, key.encode()))


def _unreadable(errors: list[str]) -> str:
    """Why llama.cpp could not read a header, from the errors that it logged."""
    reason = errors[0].partition(": ")[2] if errors else "no reason given"
    if "invalid magic" in reason or "read magic" in reason:
        return "not a GGUF file"
    return f"the file is truncated or damaged: download it again ({reason})"


class _InitParams(ctypes.Structure):
    """gguf.h, struct gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@functools.cache
def _gguf() -> ctypes.CDLL:
    pointer, index, text, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t
    functions = (
        ("init_from_file", pointer, text, _InitParams),
        ("free", None, pointer),
        ("get_n_tensors", index, pointer),
        ("get_tensor_name", text, pointer, index),
        ("get_tensor_size", size, pointer, index),
        ("find_key", index, pointer, text),
        ("get_kv_type", ctypes.c_int, pointer, index),
        ("get_arr_type", ctypes.c_int, pointer, index),
        ("get_arr_n", size, pointer, index),
        ("get_arr_data", pointer, pointer, index),
        ("get_arr_str", text, pointer, index, size),
    )
    return library.bind("gguf_", functions)


# Damaged files


def check_head(head: Head, *, vocabulary_only: bool = False) -> None:
    """Check the header of a file that llama.cpp is about to load, or of which it loads only the vocabulary.

    Raises ModelError, which names the key, its value and what is allowed.
    """
    if head.text("tokenizer.ggml.model") in _NO_VOCABULARY or head.count("tokenizer.ggml.tokens") == 0:
        raise ModelError(f"{head.path}: this GGUF has no vocabulary")
    if not vocabulary_only:
        _check_layers(head)
        _check_experts(head)
        _check_attention(head)
        _check_tensors(head)


def _check_layers(head: Head) -> None:
    n_layer = _single(head, "block_count", 1, MAX_LAYERS)
    if n_layer is not None:
        _single(head, "nextn_predict_layers", 0, n_layer)


def _check_experts(head: Head) -> None:
    n_expert = _single(head, "expert_count", 0, _MAX_EXPERTS) or 0
    if n_expert < 2 and head.architecture in _ONE_EXPERT:
        return
    if not n_expert and head.architecture in _BY_EXPERTS and not head.number("expert_feed_forward_length"):
        _refuse(head, "expert_count", 0, "1 or more")
    most = head.numbers("expert_used_count")
    if most and not min(1, n_expert) <= max(most) <= n_expert:
        _refuse(head, "expert_used_count", max(most), f"{min(1, n_expert)} to {n_expert}, the expert_count")
    if n_expert and not head.has("expert_used_count"):
        _refuse(head, "expert_count", n_expert, "0 in a file without expert_used_count")
    n_group = _single(head, "expert_group_count", 0, max(0, n_expert - 1)) or 0
    if n_group > 1:
        if n_expert % n_group:
            _refuse(head, "expert_group_count", n_group, f"a divisor of {n_expert}, the expert_count")
        _single(head, "expert_group_used_count", 1, n_group - 1)


def _check_attention(head: Head) -> None:
    scaling = head.text(f"{head.architecture}.rope.scaling.type")
    if scaling is not None and scaling not in _ROPE_SCALING:
        _refuse(head, "rope.scaling.type", repr(scaling), " or ".join(_ROPE_SCALING))
    if head.architecture in _BY_HEADS and not any(head.numbers("attention.head_count")[:1]):
        _refuse(head, "attention.head_count", 0, "1 or more")
    n_rot = head.number("rope.dimension_count")
    if n_rot % 2:
        _refuse(head, "rope.dimension_count", n_rot, "even")
    if head.number("attention.sliding_window") != _NO_WINDOW:
        _single(head, "attention.sliding_window", 0, _MAX_WINDOW)
    for key, harmless in _DIVISORS.items():
        if head.numbers(key) == [0] and head.architecture not in harmless:
            _refuse(head, key, 0, "1 or more")


def _check_tensors(head: Head) -> None:
    if head.architecture not in _LINEAR or head.count("split.count") is not None:
        return
    names = head.tensors().keys()
    for layer in (name.removesuffix(".ssm_out.weight") for name in names if name.endswith(".ssm_out.weight")):
        for name in (f"{layer}.attn_qkv.weight", f"{layer}.attn_gate.weight"):
            if name not in names:
                raise ModelError(f"{head.path}: there is no tensor {name}: the file is damaged")


def _single(head: Head, key: str, least: int, most: int) -> int | None:
    """The number `key`, checked; None if it is absent, or no number, which llama.cpp reports."""
    numbers = head.numbers(key)
    if len(numbers) != 1:
        return None
    if not least <= numbers[0] <= most:
        _refuse(head, key, numbers[0], f"{least} to {most}" if most > least else str(least))
    return numbers[0]


def _refuse(head: Head, key: str, value: object, allowed: str) -> NoReturn:
    raise ModelError(f"{head.path}: {head.architecture}.{key} is {value}, but must be {allowed}: the file is damaged")
