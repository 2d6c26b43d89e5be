"""GrammarProcess: grammars in a separate process: GBNF by llama.cpp, Lark by llguidance.

llama.cpp limits neither the time nor the memory that a grammar takes. A grammar of 50 bytes can let it recurse, loop,
allocate without end or abort, when it is parsed or at any token later, and nothing can interrupt it. llguidance's own
limits are high. In this process, they have a limit for each call, and only the process ends. It has the model's
vocabulary, but no weights, and serves one grammar after the other.
"""

import ctypes
import functools
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import llama_cpp
import numpy as np
import numpy.typing as npt

from duo.config import ModelConfig
from duo.errors import BusyError, DuoError, ModelError, UsageError
from duo.llama import child
from duo.llama.check_grammar import HUNG_S, MARK, MAX_S
from duo.llama.handle import Handle
from duo.llama.lark import Lark, tokenizer
from duo.llama.model import Model

_USUAL = 2**15  # tokens of a vocabulary; for all tokens of a larger one, more than MAX_S
_MAX_MEMORY = 2**29  # beyond the vocabulary

# Requests. Followed by a grammar: b"\1" if it is valid. By a token: b"\1" if it is allowed; no answer. By nothing: a
# bit for each token; nothing, when the vocabulary is loaded.
PARSE, ALLOWS, ACCEPT, MASK, _READY = b"g", b"?", b"+", b"*", b"r"

# Nothing is computed on a GPU, and one would only take time and address space. GGML_NO_BACKTRACE: abort at once.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": "", "GGML_NO_BACKTRACE": "1",
}  # fmt: skip


class GrammarProcess(Handle):
    """The process. Used by one thread at a time."""

    def __init__(self, model: Model) -> None:
        """Start it. Raises ClosedError, BusyError, and ModelError if it cannot read the vocabulary."""
        command = child.call("duo.llama.grammar_process", os.fsdecode(model.path.absolute()))
        self._connection, other = Pipe()
        with model.use(), other:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - what it writes to standard error
            try:
                process = subprocess.Popen(
                    command,
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._log,
                    env=os.environ | _ENVIRONMENT,
                    start_new_session=True,  # Ctrl-C is for this process
                )
            except OSError as error:
                self._log.close()
                raise BusyError(f"the process that applies the grammar cannot be started: {error.strerror}") from None
            # Idle, it must not keep the model alive, but close before it.
            super().__init__(process, functools.partial(_end, self._connection, self._log))
            model._children.add(self)
        self.ask(_READY)

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, or has ended by itself."""
        return self.closed or self.pointer.poll() is not None

    def ask(self, kind: bytes, data: bytes = b"") -> bytes:
        """The answer to a request. Raises UsageError at a limit."""
        with self.use() as process:
            try:
                self._connection.send_bytes(kind + data)
                if kind == ACCEPT:
                    return b""
                if not self._connection.poll(HUNG_S):
                    process.kill()
                return self._connection.recv_bytes()
            except (EOFError, OSError):
                status = process.wait()
        last = (self.lines() or [f"exit status {status}"])[-1]
        self.close()
        if kind == _READY:
            raise ModelError(f"the process that applies the grammar failed: {last}")
        if status < 0:
            less = (
                ""
                if resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
                else ", or less within the limits of this process,"
            )
            limits = f"{MAX_S:g} s or {_MAX_MEMORY >> 20} MB{less} for one token"
            raise UsageError(f"the grammar is too complex: it needs more than {limits}, or fails")
        raise UsageError(f"the grammar cannot be applied: {last.removeprefix('duo: error: ')[:300]}")

    def lines(self) -> list[str]:
        """What it has written to standard error since the last call. Its position in the file is the same as ours."""
        self._log.seek(0)
        lines = self._log.read(2**16).decode("utf-8", "replace").splitlines()
        self._log.seek(0)
        self._log.truncate()
        return lines


def _end(connection: Connection, log: IO[bytes], process: subprocess.Popen[bytes]) -> None:
    with connection, log, process:
        process.kill()


# In the process

# llama.h, llama_token_data
TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def main() -> None:
    """Apply grammars with the vocabulary of the model that the first argument names, until standard input is closed."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        model = Model(ModelConfig(Path(sys.argv[1]), n_gpu_layers=0), vocabulary_only=True)
    except DuoError as error:
        sys.exit(str(error))
    with suppress(OSError, ValueError):  # Linux only
        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = n_pages * resource.getpagesize() + _MAX_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        with suppress(EOFError, OSError):
            _serve(model, Connection(0))
    except ValueError as error:
        sys.exit(str(error))


def _serve(model: Model, connection: Connection) -> None:
    grammar: _Gbnf | Lark | None = None
    while True:
        request = connection.recv_bytes()
        kind, data = request[:1], request[1:]
        if is_lark := kind == PARSE and data.startswith(MARK.encode()):
            signal.setitimer(signal.ITIMER_PROF, 0)
            tokenizer(model)  # once, in more time than a grammar has
        # The signal ends this process.
        signal.setitimer(signal.ITIMER_PROF, MAX_S * max(1, model.n_vocab / _USUAL) if kind == MASK else MAX_S)
        if kind == PARSE:
            grammar = None  # frees the last one
            try:
                grammar = Lark(model, data.decode()) if is_lark else _Gbnf(model, data)
            except ValueError as error:
                sys.stderr.write(f"parse: {error}\n")
            connection.send_bytes(bytes([grammar is not None]))
        elif grammar is None:
            connection.send_bytes(b"")
        elif kind == ALLOWS:
            connection.send_bytes(bytes([grammar.allows(int(data))]))
        elif kind == ACCEPT:
            grammar.accept(int(data))
        else:
            connection.send_bytes(bytes(np.packbits(grammar.mask())))


class _Gbnf:
    """A grammar of llama.cpp and its state after a text."""

    def __init__(self, model: Model, text: bytes) -> None:
        """Raises ValueError if it is invalid; llama.cpp has written the reason to standard error."""
        self._sampler = llama_cpp.llama_sampler_init_grammar(model.vocabulary, text, b"root")
        if not self._sampler:
            raise ValueError("the grammar is invalid")
        weakref.finalize(self, llama_cpp.llama_sampler_free, self._sampler)
        self._all = np.arange(model.n_vocab)

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""
        return bool(self._allowed(np.array([token]))[0])

    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether each token is allowed."""
        return self._allowed(self._all)

    def accept(self, token: int) -> None:
        """Advance by `token`."""
        llama_cpp.llama_sampler_accept(self._sampler, token)

    def _allowed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        tokens = np.zeros(len(ids), TOKEN)
        tokens["id"] = ids
        data = tokens.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data, len(tokens), -1, False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return np.asarray(tokens["logit"] == 0.0, np.bool_)
