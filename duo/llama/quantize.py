"""Quantise a GGUF file."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp

from duo.errors import ModelError
from duo.llama import library

F16 = 1  # llama.h, enum llama_ftype
Q4_0 = 2


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Convert `source`, which may be quantised, to `file_type` (llama.h, enum llama_ftype). Raises ModelError."""
    library.start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.allow_requantize = True
    with library.collect_errors() as errors:
        status = llama_cpp.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params))
    if status != 0:
        raise ModelError(f"{source.name} could not be quantised: {errors[-1] if errors else status}")
