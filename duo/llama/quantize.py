"""Make one GGUF from another."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp

from duo.errors import ModelError
from duo.llama import library

F16 = 1  # llama.h, enum llama_ftype
Q4_0 = 2


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Write `source` again as `file_type` (llama.h, enum llama_ftype), from quantised weights too.

    Raises ModelError when llama.cpp cannot read the one or write the other.
    """
    library.start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.allow_requantize = True
    with library.collect_errors() as errors:
        status = llama_cpp.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params))
    if status != 0:
        raise ModelError(f"{source.name} could not be quantised: {errors[-1] if errors else status}")
