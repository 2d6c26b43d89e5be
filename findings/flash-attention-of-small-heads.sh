#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp, processor only), on a processor with AVX512-FP16 (Intel's Xeons since 2023).
# Expected: flash attention of heads of 64 values takes about half as long as of 128, for as many heads, rows and cells.
# Instead: it takes four times as long, heads of 80 and 96 six and seven times, while matrix products take as expected:
# with four rows and 1,024 cells, flash attention is 9 to 18 times as slow as these for heads of 64 to 96, twice for 128.
# Why: with AVX512-FP16, ggml's loops over half-precision values step by 128 values (GGML_F16_STEP), 64 without it; what
# is left of a row is computed value by value, and of a head of less than 128 values that is the whole head.
# Why it matters: many small models have heads of 64 (SmolLM2, TinyLlama, Llama 3.2 1B, Qwen2.5 0.5B), and -fa auto is on
# there. With some hundred tokens in the cache, a batch of eight rows takes twice as long as with -fa off.
# pip compiles llama-cpp-python for some minutes if it has not kept a wheel of it.
set -euo pipefail
if ! grep -q avx512_fp16 /proc/cpuinfo; then
    echo "this processor has no AVX512-FP16: nothing to see here"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install llama-cpp-python==0.3.36
"$folder/venv/bin/python" - <<'PROGRAM'
import ctypes
import time
from pathlib import Path

import llama_cpp

ROWS, CELLS, HEADS, KV_HEADS, F32, F16 = 4, 1024, 8, 2, 0, 1
POINTER, FLOAT = ctypes.c_void_p, ctypes.c_float
folder = Path(llama_cpp.__file__).parent / "lib"
libraries = [ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) for path in sorted(folder.glob("libggml*.so"))]


class Memory(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", POINTER), ("no_alloc", ctypes.c_bool)]


def function(name, result, *arguments):
    for library in libraries:
        if hasattr(library, name):
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found
    raise SystemExit(f"llama.cpp has changed: no {name}")


new = function("ggml_new_tensor_3d", POINTER, POINTER, ctypes.c_int, *[ctypes.c_int64] * 3)
zero = function("ggml_set_zero", POINTER, POINTER)
multiply = function("ggml_mul_mat", POINTER, *[POINTER] * 3)
softmax = function("ggml_soft_max_ext", POINTER, *[POINTER] * 3, FLOAT, FLOAT)
attend = function("ggml_flash_attn_ext", POINTER, *[POINTER] * 5, *[FLOAT] * 3)
expand = function("ggml_build_forward_expand", None, POINTER, POINTER)
compute = function("ggml_graph_compute_with_ctx", ctypes.c_int, POINTER, POINTER, ctypes.c_int)


def microseconds(size, flash):
    context = function("ggml_init", POINTER, Memory)(Memory(1 << 24, None, False))

    def tensor(kind, *shape):
        return zero(new(context, kind, *shape))

    q, k = tensor(F32, size, ROWS, HEADS), tensor(F16, size, CELLS, KV_HEADS)
    if flash:
        v, mask = tensor(F16, size, CELLS, KV_HEADS), tensor(F16, CELLS, ROWS, 1)
        result = attend(context, q, k, v, mask, 1.0, 0.0, 0.0)
    else:
        v, mask = tensor(F16, CELLS, size, KV_HEADS), tensor(F32, CELLS, ROWS, 1)
        result = multiply(context, v, softmax(context, multiply(context, k, q), mask, 1.0, 0.0))
    graph = function("ggml_new_graph", POINTER, POINTER)(context)
    expand(graph, result)
    taken = []
    for _ in range(20):
        begin = time.perf_counter()
        compute(context, graph, 1)
        taken.append(time.perf_counter() - begin)
    function("ggml_free", None, POINTER)(context)
    return 1e6 * min(taken)


flash = {}
for size in (64, 80, 96, 128):
    flash[size], products = microseconds(size, True), microseconds(size, False)
    print(f"heads of {size:3}: flash attention {flash[size]:5.0f} µs, matrix products {products:4.0f} µs")
if flash[64] < 1.5 * flash[128]:
    raise SystemExit("llama.cpp has changed: heads of 64 are no longer slower than heads of 128")
PROGRAM
