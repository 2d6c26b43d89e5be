"""What can be told and started without importing llama_cpp, which takes half a second and may fail."""

import ctypes
import os
import shlex
import sys
import threading
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from duo.errors import BusyError

CPU = "CPU"  # the name of the device that is no device: the host

# The back ends for GPUs, by llama.cpp's names, and the variables that llama.cpp, the driver or its loader reads: each
# can hide all devices. GGML_CUDA_DEVICES is missing: it can only add devices. AMD's HIP reads CUDA's.
GPU_BACKENDS = {
    "CUDA": ("CUDA_VISIBLE_DEVICES",),
    "ROCm": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"),
    "MTL": ("GGML_METAL_DEVICES",),
    "Vulkan": (
        *("GGML_VK_VISIBLE_DEVICES", "GGML_DISABLE_VULKAN", "VK_DRIVER_FILES", "VK_ICD_FILENAMES"),
        *("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE"),
    ),
    "SYCL": ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"),
    "OpenCL": ("GGML_OPENCL_PLATFORM", "GGML_OPENCL_DEVICE"),
    "MUSA": ("MUSA_VISIBLE_DEVICES",),
    "CANN": ("ASCEND_RT_VISIBLE_DEVICES",),
}
# A back end's file beside libggml is libggml-<library>.so (or .dylib): its name in lower case, but for these.
LIBRARIES = {"ROCm": "hip", "MTL": "metal"}
CALL = "--call"  # the first argument of the program in an archive, which runs as many programs: archive/start.py


def hiding_variables(backends: Iterable[str] = GPU_BACKENDS) -> dict[str, str]:
    """The variables that are set and can hide devices from these back ends (a variable may be set and empty)."""
    names = dict.fromkeys(name for backend in backends for name in GPU_BACKENDS[backend])
    return {name: os.environ[name] for name in names if name in os.environ}


def versions() -> dict[str, str]:
    """Versions of the packages that determine a run's behaviour and speed."""
    return {
        "duo": version("duo-llm"),
        "llama-cpp-python": version("llama-cpp-python"),
        "llama.cpp": _llama_version(),
        "numpy": version("numpy"),
    }


def library() -> ctypes.CDLL:
    """The library that llama_cpp loads, with those that it needs. Raises ModuleNotFoundError or OSError."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("llama-cpp-python is not installed")
    folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH", Path(spec.origin).parent / "lib"))
    return ctypes.CDLL(str(folder / f"libllama{'.dylib' if sys.platform == 'darwin' else '.so'}"))


def _llama_version() -> str:
    function = library().llama_version
    function.restype = ctypes.c_char_p
    return str(function().decode())


def is_frozen() -> bool:
    """Whether this duo is from an archive (`make archive`), where sys.executable is duo and not Python."""
    return bool(getattr(sys, "frozen", False))


def child_command(module: str, *arguments: str, function: str = "main") -> list[str]:
    """The command line that calls a function of a module with `arguments`.

    Unlike `python -m`, it imports nothing from the current directory. Raises BusyError if this process does not know
    where Python is.
    """
    if not sys.executable:
        raise BusyError("no other process can be started: it is not known where Python is")
    if is_frozen():
        return [sys.executable, CALL, f"{module}:{function}", *arguments]
    code = (
        f"import sys; sys.path = list(filter(None, sys.path)); from {module} import {function}; sys.exit({function}())"
    )
    return [sys.executable, "-c", code, *arguments]


def pip_install() -> str:
    """The command that installs packages where this process has its own, up to the names of the packages."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"  # as uv makes them


def end_with_stdin() -> None:
    """From now on, exit at once when standard input is closed."""

    def wait_for_eof() -> None:
        while os.read(0, 4096):  # not sys.stdin, which Python could not close at exit
            pass
        os._exit(0)

    threading.Thread(target=wait_for_eof, name="duo-stdin", daemon=True).start()
