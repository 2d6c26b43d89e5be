"""The KV cache: the types of its values, and its number of cells."""

from __future__ import annotations

import llama_cpp

from duo.config import ContextConfig
from duo.errors import UsageError

BRANCH_CELLS = 32  # for each branch, besides those that it shares with the text: see Context.branch
CELLS = 256  # llama.cpp rounds the number of cells up to a multiple of this

# ggml's type and bytes per value of the cache types that llama.cpp accepts (quantised: in blocks of 32 values).
CACHE_TYPES: dict[str, tuple[int, float]] = {
    "f32": (llama_cpp.GGML_TYPE_F32, 4),
    "f16": (llama_cpp.GGML_TYPE_F16, 2),
    "bf16": (30, 2),
    "q8_0": (llama_cpp.GGML_TYPE_Q8_0, 34 / 32),
    "q5_1": (llama_cpp.GGML_TYPE_Q5_1, 24 / 32),
    "q5_0": (llama_cpp.GGML_TYPE_Q5_0, 22 / 32),
    "q4_1": (llama_cpp.GGML_TYPE_Q4_1, 20 / 32),
    "q4_0": (llama_cpp.GGML_TYPE_Q4_0, 18 / 32),
    "iq4_nl": (llama_cpp.GGML_TYPE_IQ4_NL, 18 / 32),
}


def cache_type(name: str) -> tuple[int, float]:
    """ggml's type and bytes per value of a cache type. Raises UsageError for an unknown one."""
    if name not in CACHE_TYPES:
        raise UsageError(f"unknown cache type {name} (available: {', '.join(CACHE_TYPES)})")
    return CACHE_TYPES[name]


def n_cells(config: ContextConfig) -> int:
    """The number of cells, one per token: as llama.cpp makes them for `config`."""
    wanted = config.n_ctx + config.n_branches * BRANCH_CELLS
    return -(-wanted // CELLS) * CELLS
