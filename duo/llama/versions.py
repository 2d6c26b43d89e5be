"""Versions, without importing llama_cpp: that takes half a second, most of it for packages that duo does not use."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions of the packages that determine a run's behaviour and speed."""
    return {
        "duo": version("duo-llm"),
        "llama-cpp-python": version("llama-cpp-python"),
        "llama.cpp": _llama_version(),
        "numpy": version("numpy"),
    }


def _llama_version() -> str:
    """That of the library that llama_cpp loads."""
    spec = find_spec("llama_cpp")
    if "llama_cpp" not in sys.modules and spec is not None and spec.origin is not None:
        folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH", Path(spec.origin).parent / "lib"))
        suffix = ".dylib" if sys.platform == "darwin" else ".so"
        with suppress(OSError, AttributeError):
            function = ctypes.CDLL(str(folder / f"libllama{suffix}")).llama_version
            function.restype = ctypes.c_char_p
            return str(function().decode())
    import llama_cpp  # noqa: PLC0415

    return str(llama_cpp.llama_version().decode())
