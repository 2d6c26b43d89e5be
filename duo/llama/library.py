"""llama.cpp's start-up, log, build information, and quantisation of files."""

import ctypes
import functools
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
from llama_cpp._ggml import libggml

from duo.llama.lifeline import catch_aborts, reading
from duo.llama.limits import failure

F16, Q4_0 = 1, 2  # llama.h, enum llama_ftype

_logger = logging.getLogger("duo.llama")
logging.getLogger("duo").addHandler(logging.NullHandler())  # silent unless the program configures logging

_CONTINUES = 5  # ggml.h, enum ggml_log_level; 1 to 4 are Python's levels / 10, and 0 is none
_TYPES = {
    "v": None, "i": ctypes.c_int, "n": ctypes.c_int64, "z": ctypes.c_size_t, "s": ctypes.c_char_p, "p": ctypes.c_void_p,
}  # fmt: skip
# Ends of the lines that llama.cpp logs as errors when a decode is cancelled.
_CANCELLED = ("failed with error 1", "compute status: 1", "failed to decode, ret = 2")
_LONGER = "possible training context overflow"  # of all texts that a context holds


class _Log(threading.local):
    """The unfinished line of this thread, and its errors inside errors_of()."""

    level = logging.INFO
    line = ""
    errors: list[str] | None = None
    is_longer = False


_log = _Log()


_LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # besides those of llama.cpp


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if level != _CONTINUES:
        _log.level = 10 * level or logging.INFO
    _log.line += text.decode("utf-8", "replace")
    if not _log.line.endswith("\n"):
        return
    line, _log.line = _log.line.rstrip(), ""
    if _log.level >= logging.ERROR and line.endswith(_CANCELLED):
        _log.level = logging.DEBUG
    if _log.is_longer and line.endswith(_LONGER):
        _log.level = logging.DEBUG
    if _log.errors is not None and _log.level >= logging.ERROR:
        _log.errors.append(_LINE_ENDS.sub(" ", line))  # it may quote a damaged file
    _logger.log(_log.level, "%s", line)


@functools.cache
def start() -> None:
    """Start llama.cpp's back ends and route its log to the logger `duo.llama`. A second call does nothing."""
    llama_cpp.llama_log_set(_on_log, ctypes.c_void_p(0))
    catch_aborts()
    _load_backends()
    llama_cpp.llama_backend_init()


def _load_backends() -> None:
    """Load the back ends that are libraries of their own (GGML_BACKEND_DL): those beside llama.cpp.

    llama.cpp itself would look beside the program, which is Python, and in the current directory. A wheel has no links,
    so that libggml.so and the libggml.so.0 of libllama.so may be two libraries, each with its own list of back ends.
    """
    for lib in (llama_cpp.llama_cpp._lib, libggml):
        count, load = lib["ggml_backend_reg_count"], lib["ggml_backend_load_all_from_path"]
        count.restype, load.restype = ctypes.c_size_t, None
        if not count():
            load(bytes(Path(libggml._name).parent))


def bind(prefix: str, **signatures: str) -> ctypes.CDLL:
    """ggml, started, with the types of functions, by name without prefix: of the result and each argument, a letter."""
    start()
    lib: ctypes.CDLL = libggml
    for name, signature in signatures.items():
        function = getattr(lib, prefix + name)
        function.restype, *function.argtypes = map(_TYPES.__getitem__, signature)
    return lib


@contextmanager
def errors_of(path: Path, needs: str = "more is needed", *, is_longer: bool = False) -> Iterator[list[str]]:
    """The errors that llama.cpp logs on this thread in the block; an abort there is the fault of the file `path`.

    `needs`: what is said if memory is lacking. `is_longer`: more cells than the model was trained for are no fault.
    """
    _log.errors, reading.path, reading.needs, _log.is_longer = [], path, needs, is_longer
    try:
        yield _log.errors
    finally:
        _log.errors, reading.path, _log.is_longer = None, None, False


def supports_rpc() -> bool:
    """Whether this build has the RPC back end."""
    start()
    return bool(llama_cpp.llama_supports_rpc())


def system_info() -> str:
    """The instruction sets and build options of llama.cpp."""
    start()
    return str(llama_cpp.llama_print_system_info().decode()).strip(" |")


def file_type_name(file_type: int) -> str:
    """What llama.cpp calls a number of llama.h, enum llama_ftype: `Q4_0`, `Q4_K - Medium`."""
    # "all F32", or with "(guessed) " in front where the file does not name it.
    return str(llama_cpp.llama_ftype_name(file_type).decode().removeprefix("(guessed) ").removeprefix("all "))


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Convert `source`, which may be quantised, to `file_type` (llama.h, enum llama_ftype). Raises ModelError."""
    start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    params.allow_requantize = True
    with errors_of(source) as errors:
        status = llama_cpp.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params))
    if status != 0:
        what = f"{source.name} could not be quantised"
        raise failure(what, "\n".join(errors), "more is needed", errors[-1] if errors else f"{status}")
