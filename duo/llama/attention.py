"""Whether flash attention is fast on this machine's CPU.

ggml's kernel takes each row of a batch and each cell by itself; matrix products share the cells, but take more passes
over the scores. Which is faster differs between CPUs by a factor of three (benchmarks/NOTES.md): both are measured.
"""

import ctypes
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

from duo.llama.build import library

log = logging.getLogger("duo.llama")

_ROWS, _CELLS = 4, 1024  # of a batch of candidates, in a text of medium length
_HEADS, _KV_HEADS = 8, 2  # of a small layer
_SIZES = 32, 512  # of a head, that are measured
_SLOWER = 4.5  # factor here up to which what it gains in prompts, short texts and single rows is more
_RUNS = 8
_F32, _F16 = 0, 1  # ggml_type
_BYTES = 1 << 24


class _ContextParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


@cache
def flash_is_fast(head_size: int) -> bool:
    """Whether flash attention is not much slower than matrix products where it is slowest: with several rows.

    `head_size`: values of a head; on some CPUs, its kernel takes four times as long for 64 as for 128. Measured once
    each, in some milliseconds, on one thread. False if this build of llama.cpp does not show what that needs.
    """
    with ExitStack() as stack:
        try:
            ggml, size = library(), sorted((*_SIZES, head_size))[1]
            flash, products = (_attention(ggml, stack, size, is_flash=is_flash) for is_flash in (True, False))
        except (AttributeError, OSError, ModuleNotFoundError) as error:
            log.info("flash attention was not measured: %s", error)
            return False
        times = [(flash(), products()) for _ in range(_RUNS)]  # under the same load
    flash_s, products_s = map(min, zip(*times, strict=True))
    log.info("heads of %d: %.0f µs by flash attention, %.0f µs without", head_size, 1e6 * flash_s, 1e6 * products_s)
    return bool(flash_s <= _SLOWER * products_s)


def _attention(ggml: ctypes.CDLL, stack: ExitStack, size: int, *, is_flash: bool) -> Callable[[], float]:
    """A function that computes the attention of a layer as llama.cpp's graphs do, and returns the seconds.

    `size`: of a head. `stack` frees what it needs.
    """
    pointer, floating = ctypes.c_void_p, ctypes.c_float

    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(ggml, f"ggml_{name}")
        found.restype, found.argtypes = result, arguments
        return found

    context = function("init", pointer, _ContextParams)(_ContextParams(_BYTES, None, False))
    stack.callback(function("free", None, pointer), context)
    new = function("new_tensor_3d", pointer, pointer, ctypes.c_int, *3 * [ctypes.c_int64])
    zero, multiply = function("set_zero", pointer, pointer), function("mul_mat", pointer, *3 * [pointer])

    def tensor(kind: int, *shape: int) -> Any:
        return zero(new(context, kind, *shape))

    q, k = tensor(_F32, size, _ROWS, _HEADS), tensor(_F16, size, _CELLS, _KV_HEADS)
    if is_flash:
        attend = function("flash_attn_ext", pointer, *5 * [pointer], *3 * [floating])
        v, mask = tensor(_F16, size, _CELLS, _KV_HEADS), tensor(_F16, _CELLS, _ROWS, 1)
        result = attend(context, q, k, v, mask, 1.0, 0.0, 0.0)
    else:
        softmax = function("soft_max_ext", pointer, *3 * [pointer], *2 * [floating])
        v, mask = tensor(_F16, _CELLS, size, _KV_HEADS), tensor(_F32, _CELLS, _ROWS, 1)
        result = multiply(context, v, softmax(context, multiply(context, k, q), mask, 1.0, 0.0))
    graph = function("new_graph", pointer, pointer)(context)
    function("build_forward_expand", None, pointer, pointer)(graph, result)
    compute = function("graph_compute_with_ctx", ctypes.c_int, pointer, pointer, ctypes.c_int)

    def run() -> float:
        start = time.perf_counter()
        compute(context, graph, 1)
        return time.perf_counter() - start

    return run
