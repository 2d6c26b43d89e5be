"""The header of a GGUF file: names and sizes of its tensors, and its metadata."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
