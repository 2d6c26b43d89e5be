"""The back ends that this build of llama.cpp has."""

from __future__ import annotations

import ctypes

from llama_cpp._ggml import libggml

from duo.llama import library


def list_backends() -> list[str]:
    """Their names as llama.cpp writes them: CPU, RPC, CUDA, ROCm, MTL (Metal), Vulkan …"""
    library.start()
    lib: ctypes.CDLL = libggml
    lib.ggml_backend_reg_count.restype = ctypes.c_size_t
    lib.ggml_backend_reg_get.argtypes, lib.ggml_backend_reg_get.restype = [ctypes.c_size_t], ctypes.c_void_p
    lib.ggml_backend_reg_name.argtypes, lib.ggml_backend_reg_name.restype = [ctypes.c_void_p], ctypes.c_char_p
    count = lib.ggml_backend_reg_count()
    return [lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(i)).decode() for i in range(count)]
