"""Tensors that the user places by patterns of their names: usually experts, which stay on the CPU."""

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duo.config import ModelConfig
from duo.llama.build import CPU
from duo.llama.devices import Device, ggml
from duo.llama.gguf_header import MAX_LAYERS, GgufHeader

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # common.h, LLM_FFN_EXPS_REGEX
# What means the same to Python and to llama.cpp, whose regular expressions are those of ECMAScript.
_ESCAPED = r"\\(?:[^a-zA-Z0-9]|[dDsSwW])"
_TIMES = r"(?:(?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})\??)?"
_SET = rf"\[\^?(?:{_ESCAPED}|[a-zA-Z]-[a-zA-Z]|\d-\d|[^\\\[\]&|~^-])+\]"
_PATTERN = re.compile(rf"(?:(?:{_SET}|{_ESCAPED}|[^][\\(){{}}*+?|^$]|\)){_TIMES}|\((?:\?[:=!])?|[|^$]|\\[bB])+")
_MOST = 1000  # characters of a pattern, which is compiled recursively


class _Entry(ctypes.Structure):
    """llama.h, struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class Override(NamedTuple):
    """A pattern, the device of the tensors that it matches, a pointer to its buffer type, and all their names."""

    pattern: str
    device: str  # or CPU
    buffer_type: int
    names: frozenset[str]


def as_array(overrides: Sequence[Override]) -> ctypes.Array[_Entry]:
    """As llama.cpp reads them while it loads a model: an entry that is empty is the last."""
    return (_Entry * (len(overrides) + 1))(*[(one.pattern.encode(), one.buffer_type) for one in overrides])


def read_overrides(config: ModelConfig, header: GgufHeader, devices: Sequence[Device]) -> list[Override]:
    """Those of a model on these devices, of which the first that matches counts. Raises UsageError.

    Those of `override_tensor` come first. In llama.cpp, the order of the options decides.
    """
    found = list(_named(config, header, devices))
    n = min(config.n_cpu_moe, header.number("block_count"), MAX_LAYERS)
    of_layers, first = rf"blk\.({'|'.join(map(str, range(n)))}){EXPERTS}", f" in its first {n} layer{'s' * (n > 1)}"
    for parameter, pattern, where in (("n_cpu_moe", of_layers, first), ("cpu_moe", EXPERTS, "")):
        if getattr(config, parameter):
            if not (names := _matching(pattern, header)):
                raise config.error(parameter, f": {config.path.name} has no experts{where}")
            found.append(Override(pattern, CPU, ggml().ggml_backend_cpu_buffer_type(), names))
    return found


def _named(config: ModelConfig, header: GgufHeader, devices: Sequence[Device]) -> Iterator[Override]:
    known = {CPU: (CPU, ggml().ggml_backend_cpu_buffer_type())} if config.override_tensor else {}
    if known and config.split_mode != "tensor":  # which makes one device of them
        for device in devices:
            pointer = ggml().ggml_backend_dev_buffer_type(device.pointer)
            known[ggml().ggml_backend_buft_name(pointer).decode()] = device.name, pointer
    for text in config.override_tensor:
        pattern, _, name = text.partition("=")
        why, names = "", frozenset[str]()
        if not (pattern and name):
            why = f"{text!r} is not of the form PATTERN=TYPE, such as exps=CPU"
        elif name not in known:
            why = f"no buffer type {name} for this model (there are: {', '.join(known)})"
        elif not _is_known(pattern):
            why = f"{pattern[:99]!r} is not a regular expression, or has flags, look-behind, [:classes:] or references"
        elif not (names := _matching(pattern, header)):
            example = next((name for name in header.tensors if "exps" in name), next(iter(header.tensors), ""))
            why = f"no tensor of {config.path.name} matches {pattern!r} (one is {example})"
        if why:
            raise config.error("override_tensor", f": {why}")
        yield Override(pattern, *known[name], names)


def _is_known(pattern: str) -> bool:
    """Whether it is a regular expression that means the same to llama.cpp and to _matching()."""
    if len(pattern) > _MOST or not (pattern.isascii() and _PATTERN.fullmatch(pattern)):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _matching(pattern: str, header: GgufHeader) -> frozenset[str]:
    """The names of tensors in which the pattern is found."""
    return frozenset(filter(re.compile(pattern, re.ASCII).search, header.tensors))
