"""Tensors that are placed by patterns of their names: usually experts, which stay on the CPU."""

import ctypes
import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from duo.config import ModelConfig
from duo.llama.build import CPU
from duo.llama.devices import Device, ggml
from duo.llama.gguf_header import GgufHeader

# What means the same to Python and to llama.cpp, whose regular expressions are those of ECMAScript.
_ESCAPED = r"\\(?:[^a-zA-Z0-9]|[dDsSwW])"
_TIMES = r"(?:(?:[*+?]|\{\d{1,2}\})\??)?"  # a comma is between two overrides
_SET = rf"\[\^?(?:{_ESCAPED}|[a-zA-Z]-[a-zA-Z]|\d-\d|[^\\\[\]&|~^-])+\]"
_KNOWN = re.compile(rf"(?:(?:{_SET}|{_ESCAPED}|[^][\\(){{}}*+?|^$]|\)){_TIMES}|\((?:\?[:=!])?|[|^$]|\\[bB])+")
_MOST = 4000  # characters of a pattern, which is compiled recursively


class Override(NamedTuple):
    """A pattern, the names of all tensors in which it is found, their device or CPU, and its buffer type."""

    pattern: bytes
    names: frozenset[str]
    device: str
    buffer_type: int  # a pointer


def as_array(overrides: Sequence[Override]) -> ctypes.Array[ctypes.c_void_p]:
    """llama.h, struct llama_model_tensor_buft_override: two pointers each, and two at the end that are NULL."""
    pairs = [(ctypes.cast(ctypes.c_char_p(one.pattern), ctypes.c_void_p).value, one.buffer_type) for one in overrides]
    return (ctypes.c_void_p * (2 * len(overrides) + 2))(*chain.from_iterable(pairs))


def read_overrides(config: ModelConfig, header: GgufHeader, devices: Sequence[Device] | None) -> list[Override]:
    """Those of a model on these devices. Raises UsageError for what has no form, no device or no tensor.

    `devices` None: they are not known, and any buffer type may be one of them.
    """
    lib, found = ggml(), list[Override]()
    types = {CPU: (CPU, lib.ggml_backend_cpu_buffer_type())}
    for device in devices or () if config.overrides and config.split_mode != "tensor" else ():  # one of all
        pointer = lib.ggml_backend_dev_buffer_type(device.pointer)
        types[lib.ggml_backend_buft_name(pointer).decode()] = device.name, pointer
    for parameter, text in config.overrides:
        pattern, _, name = text.partition("=")
        why, expression = "", _compiled(pattern)
        names = frozenset(filter(expression.search, header.tensors)) if expression else frozenset()
        if not (pattern and name):
            why = f"{text!r} is not of the form PATTERN=TYPE, such as exps=CPU (a comma separates two)"
        elif devices is not None and name not in types:
            why = f"no buffer type {name} for this model (there are: {', '.join(types)})"
        elif expression is None:
            why = f"{pattern[:99]!r} is not a regular expression, or has flags, look-behind, [:classes:] or references"
        elif not names and parameter != "override_tensor":
            why = f"{config.path.name} has no experts" + " in these layers" * (parameter == "n_cpu_moe")
        elif not names:
            example = next((name for name in header.tensors if "exps" in name), next(iter(header.tensors), ""))
            why = f"no tensor of {config.path.name} matches {pattern!r} (one is {example})"
        if why:
            raise config.error(parameter, f": {why}")
        found.append(Override(pattern.encode(), names, *types.get(name, (name, 0))))
    return found


def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern, if it means the same to llama.cpp and to Python."""
    try:
        is_known = len(pattern) <= _MOST and pattern.isascii() and "\0" not in pattern and _KNOWN.fullmatch(pattern)
        return re.compile(pattern, re.ASCII) if is_known else None
    except (re.error, RecursionError):
        return None
