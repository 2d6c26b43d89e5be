"""GrammarProcess: llama.cpp's grammars in a separate process.

llama.cpp limits neither the time nor the memory that a grammar takes. A grammar of 50 bytes can let it recurse, loop,
allocate without end or abort, when it is parsed or at any token later, and nothing can interrupt it. In this process,
it has a limit for each call, and only the process ends. It has the model's vocabulary, but no weights, and serves
one grammar after the other.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from duo.config import ModelConfig
from duo.errors import BusyError, DuoError, ModelError, UsageError
from duo.llama import child
from duo.llama.handle import Handle
from duo.llama.model import Model

MAX_S = 1.0  # CPU time of a call; for all tokens, of a vocabulary of _USUAL
_USUAL = 2**15  # tokens
MAX_MEMORY = 2**29  # beyond the vocabulary
_HUNG_S = 60.0  # for a call, whatever the machine is doing

_REQUEST = struct.Struct("<cI")
# Followed by a number of bytes, and the grammar: b"\1" if it is valid. Followed by a token: b"\1" if it is allowed; no
# answer. Nothing: a bit for each token.
_PARSE, _ALLOWS, _ACCEPT, _MASK = b"g", b"?", b"+", b"*"

_REASONS = {
    -signal.SIGPROF: f"takes more than {MAX_S:g} s for one token",
    -signal.SIGABRT: f"fails, or needs more than {MAX_MEMORY >> 20} MB",
    -signal.SIGSEGV: "fails, because its rules are nested too deeply",
    -signal.SIGKILL: "was stopped",
}
# Nothing is computed on a GPU, and one would only take time and address space. GGML_NO_BACKTRACE: abort at once.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": "", "GGML_NO_BACKTRACE": "1",
}  # fmt: skip


class GrammarProcess(Handle):
    """The process. Used by one thread at a time.

    All methods raise UsageError for a grammar that reaches a limit or lets llama.cpp abort, and ModelError if the
    vocabulary cannot be read. The process is closed then.
    """

    def __init__(self, model: Model) -> None:
        """Start it; it ends with the model, or this process. Raises ClosedError, and BusyError if it cannot start."""
        command = child.call("duo.llama.grammar_process", os.fsdecode(model.path.absolute()))
        with model.use():
            try:
                self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - what it writes to standard error
                try:
                    process = subprocess.Popen(
                        command,
                        bufsize=0,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=self._log,
                        env=os.environ | _ENVIRONMENT,
                        start_new_session=True,  # Ctrl-C is for this process
                    )
                except OSError:
                    self._log.close()
                    raise
            except OSError as error:
                raise BusyError(f"the process that applies the grammar cannot be started: {error.strerror}") from None
            # Idle, it must not keep the model alive, but close before it.
            super().__init__(process, functools.partial(_end, self._log))
            model._children.add(self)
        self._is_ready = False
        self._n_mask = -(-model.n_vocab // 8)
        assert process.stdout is not None
        self._answers = process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, or has ended by itself."""
        return self.closed or self.pointer.poll() is not None

    def parse(self, text: bytes) -> None:
        """Begin with this grammar. Raises UsageError with llama.cpp's reason if it is invalid."""
        with self.use() as process:
            if not self._is_ready:
                self._read(process, 1)
                self._is_ready = True
            if self._ask(1, _PARSE, len(text), text) != b"\1":
                raise UsageError(f"the grammar is invalid: {self._reason()}")

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""
        return self._ask(1, _ALLOWS, token) == b"\1"

    def accept(self, token: int) -> None:
        """Advance by `token`, which must be allowed. Does not wait."""
        self._ask(0, _ACCEPT, token)

    def mask(self) -> npt.NDArray[np.uint8]:
        """The tokens that are allowed, as bits, packed as numpy does."""
        return np.frombuffer(self._ask(self._n_mask, _MASK, 0), np.uint8)

    def _ask(self, n: int, kind: bytes, number: int, data: bytes = b"") -> bytes:
        """Send a request, and read an answer of `n` bytes."""
        with self.use() as process:
            left = memoryview(_REQUEST.pack(kind, number) + data)
            try:
                while left:
                    left = left[process.stdin.write(left) :]
            except BrokenPipeError:
                raise self._failure(process) from None
            return self._read(process, n)

    def _read(self, process: subprocess.Popen[bytes], n: int) -> bytes:
        found = b""
        while len(found) < n:
            if not self._poll.poll(_HUNG_S * 1000):
                process.kill()
            piece = os.read(self._answers, n - len(found))
            if not piece:
                raise self._failure(process)
            found += piece
        return found

    def _failure(self, process: subprocess.Popen[bytes]) -> DuoError:
        status = process.wait()
        last = (self._lines() or [f"exit status {status}"])[-1]
        self.close()
        if not self._is_ready:
            return ModelError(f"the process that applies the grammar failed: {last}")
        if status in _REASONS:
            return UsageError(f"the grammar is too complex: llama.cpp {_REASONS[status]}")
        return UsageError(f"the grammar cannot be applied: {last.removeprefix('duo: error: ')[:300]}")

    def _reason(self) -> str:
        reasons = [line for line in self._lines() if "grammar" in line or "parse" in line]
        # What follows is the rest of the grammar.
        return reasons[0].removeprefix("parse: ")[:300] if reasons else "llama.cpp gives no reason"

    def _lines(self) -> list[str]:
        """What it has written to standard error. Its position in the file is the same as ours."""
        self._log.seek(0)
        text = self._log.read(2**16).decode("utf-8", "replace")
        self._log.seek(0)
        self._log.truncate()
        return text.splitlines()


def _end(log: IO[bytes], process: subprocess.Popen[bytes]) -> None:
    with log, process:
        process.kill()


# In the process

# llama.h, llama_token_data
_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
Tokens = npt.NDArray[np.void]


def main() -> None:
    """Apply grammars with the vocabulary of the model that the first argument names, until standard input is closed."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        model = Model(ModelConfig(Path(sys.argv[1]), n_gpu_layers=0), vocabulary_only=True)
    except DuoError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    _limit_memory()
    _answer(b"\1")  # ready: from now on, its end is the grammar's fault
    with open(0, "rb") as requests:
        _serve(model, requests)


def _limit_memory() -> None:
    with suppress(OSError, ValueError):  # Linux only
        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = n_pages * resource.getpagesize() + MAX_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _serve(model: Model, requests: IO[bytes]) -> None:
    grammar = None
    one = np.zeros(1, _TOKEN)
    everything = np.zeros(model.n_vocab, _TOKEN)
    everything["id"] = np.arange(model.n_vocab)
    while head := requests.read(_REQUEST.size):
        kind, number = _REQUEST.unpack(head)
        text = requests.read(number) if kind == _PARSE else b""
        most_s = MAX_S * max(1, model.n_vocab / _USUAL) if kind == _MASK else MAX_S
        signal.setitimer(signal.ITIMER_PROF, most_s)  # which ends this process
        if kind == _PARSE:
            if grammar:
                llama_cpp.llama_sampler_free(grammar)
            grammar = llama_cpp.llama_sampler_init_grammar(model.vocabulary, text, b"root")
            _answer(b"\1" if grammar else b"\0")
        elif kind == _ALLOWS:
            one["id"] = number
            _answer(b"\1" if _allowed(grammar, one)[0] else b"\0")
        elif kind == _ACCEPT:
            llama_cpp.llama_sampler_accept(grammar, number)
        elif kind == _MASK:
            _answer(np.packbits(_allowed(grammar, everything)).tobytes())


def _allowed(grammar: Any, tokens: Tokens) -> npt.NDArray[np.bool_]:
    """Whether each of these tokens is allowed."""
    tokens["logit"] = 0.0
    data = tokens.ctypes.data_as(llama_cpp.llama_token_data_p)
    array = llama_cpp.llama_token_data_array(data, len(tokens), -1, False)
    llama_cpp.llama_sampler_apply(grammar, ctypes.byref(array))
    allowed: npt.NDArray[np.bool_] = tokens["logit"] == 0.0
    return allowed


def _answer(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
