"""Grammar: constrains a text, in GBNF (llama.cpp, grammars/README.md) or in llguidance's Lark (grammar_process.py).

llama.cpp limits neither the time nor the memory that a grammar takes. A grammar of 50 bytes can let it recurse, loop,
allocate without end or abort, when it is parsed or at any token later, and nothing can interrupt it. llguidance's own
limits are high. So a grammar is in a separate process, with a limit for each call, and only that process ends. It has
the model's vocabulary, but no weights, and serves one grammar after the other.
"""

import functools
import json
import math
import os
import re
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

import numpy as np

from duo.errors import BusyError, GrammarError, ModelError, UsageError
from duo.llama.build import child_command
from duo.llama.grammar_process import ACCEPT, ALLOWS, MASK, MAX_MEMORY, PARSE, READY
from duo.llama.json_schema import HUNG_S, MAX_S
from duo.llama.lifeline import Handle
from duo.llama.limits import ulimit_bytes
from duo.llama.model import Model
from duo.llama.sequences import Logits

MAX_GRAMMAR = 2**18  # bytes

# Nothing is computed on a GPU, and one would only take time and address space. GGML_NO_BACKTRACE: abort at once.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": "", "GGML_NO_BACKTRACE": "1",
}  # fmt: skip


class GrammarProcess(Handle):
    """The process that applies grammars. Used by one thread at a time."""

    def __init__(self, model: Model) -> None:
        """Start it. Raises ClosedError, BusyError, and ModelError if it cannot read the vocabulary."""
        command = child_command("duo.llama.grammar_process", os.fsdecode(model.path.absolute()))
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
        self.ask(READY)

    @property
    def has_ended(self) -> bool:
        """Whether the process was closed, or has ended by itself."""
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
        if kind == READY:
            raise ModelError(f"the process that applies the grammar failed: {last}")
        if status < 0:
            less = ", or less within the limits of this process," if ulimit_bytes() < math.inf else ""
            limits = f"{MAX_S:g} s or {MAX_MEMORY >> 20} MB{less} for one token"
            raise UsageError(f"the grammar is too complex: it needs more than {limits}, or fails")
        raise UsageError(f"the grammar cannot be applied: {last.removeprefix('duo: error: ')[:300]}")

    def lines(self) -> list[str]:
        """What the process has written to standard error since the last call. Both share one position in the file."""
        self._log.seek(0)
        lines = self._log.read(2**16).decode("utf-8", "replace").splitlines()
        self._log.seek(0)
        self._log.truncate()
        return lines


def _end(connection: Connection, log: IO[bytes], process: subprocess.Popen[bytes]) -> None:
    with connection, log, process:
        process.kill()


_MOST_IDLE = 4  # as many texts as are written together by default
_idle: weakref.WeakKeyDictionary[Model, list[GrammarProcess]] = weakref.WeakKeyDictionary()


class Grammar:
    """A grammar and its state after a text, for one thread. All methods raise UsageError at a limit, ClosedError."""

    def __init__(self, model: Model, text: str) -> None:
        """`text`: GBNF with a rule `root`, or Lark with a rule `start`. Raises UsageError if it is invalid."""
        data = checked(text)
        idle = _idle.get(model)
        kept = idle.pop() if idle else None
        process = GrammarProcess(model) if kept is None or kept.has_ended else kept
        try:
            answer = process.ask(PARSE, data)
        except UsageError:  # perhaps that of another grammar, at its last token
            if process is not kept:
                raise
            process = GrammarProcess(model)
            answer = process.ask(PARSE, data)
        self._process = process
        release = weakref.finalize(self, _release, model, process)
        if answer == b"\0":
            said = (line.removeprefix("parse: ") for line in process.lines() if "grammar" in line or "parse" in line)
            release()
            # What follows the first line is the rest of the grammar.
            raise UsageError(f"the grammar is invalid: {next(said, 'llama.cpp gives no reason')[:300]}")

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""
        return self._process.ask(ALLOWS, b"%d" % token) == b"\1"

    def mask(self, logits: Logits) -> Logits:
        """A copy of logits `[n_vocab]` with -inf for what is not allowed. Raises GrammarError if nothing is."""
        bits = np.frombuffer(self._process.ask(MASK), np.uint8)
        masked = np.where(np.unpackbits(bits, count=len(logits)).view(np.bool_), logits, np.float32(-np.inf))
        if masked.max() == -np.inf:
            raise GrammarError("the grammar allows no token")
        return masked

    def accept(self, token: int) -> None:
        """Advance by `token`, which must be allowed. Does not wait."""
        self._process.ask(ACCEPT, b"%d" % token)


def _release(model: Model, process: GrammarProcess) -> None:
    """Keep the process for the model's next grammar, unless some are kept."""
    idle = _idle.setdefault(model, [])
    if not process.closed and len(idle) < _MOST_IDLE:
        idle.append(process)


def checked(grammar: str, name: str = "the grammar") -> bytes:
    """A grammar as bytes, called `name` in messages. Raises UsageError if it is empty, too large or not text."""
    if not grammar.strip() or "\0" in grammar:  # llama.cpp would ignore an empty one, and stop at a NUL
        raise UsageError(f"{name} is invalid: it is empty or contains a NUL")
    try:
        data = grammar.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is invalid: {error}") from None
    if len(data) > MAX_GRAMMAR:
        raise UsageError(f"{name} has more than {MAX_GRAMMAR} bytes")
    return data


def schema_grammar(schema: str, name: str) -> str:
    """The grammar of the JSON that matches a schema, called `name` in messages. Raises as schemas_grammar()."""
    try:
        found = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not valid JSON: {error}", name) from None
    return schemas_grammar([found], name)


def schemas_grammar(
    schemas: Sequence[object], name: str, rules: Sequence[str] = ("start: s0",), n_lenient: int = 0
) -> str:
    """A grammar of `rules`, in which s0 is the JSON that matches the first schema, s1 the second and so on.

    In the first `n_lenient`, what cannot be enforced is ignored, and oneOf is anyOf. {} is any object. Raises
    UsageError if a schema is invalid, unsupported or too complex, and BusyError. Blocks for tenths of a second, or a
    second at the limit.
    """
    try:
        request = json.dumps({"schemas": schemas, "rules": rules, "n_lenient": n_lenient}, allow_nan=False)
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply", name) from None
    except ValueError as error:  # NaN
        raise UsageError(f"{name} is not valid JSON: {error}", name) from None
    return _written(request, name)


def until(name: str, literal: str) -> list[str]:
    """Two terminals: `name`, any text up to and including the first `literal`, and NO_`name`, any text without it."""
    found = pattern(literal)
    first = f"/(?s:.*){found}/ & ~/(?s:.*){found}(?s:.+)/"
    return [f"{name}: {first}", f"NO_{name}: /(?s:.*)/ & ~/(?s:.*){found}(?s:.*)/"]


def pattern(literal: str) -> str:
    """The regular expression of a text."""
    return re.escape(literal).replace("/", r"\/")


@functools.lru_cache(maxsize=16)
def _written(request: str, name: str) -> str:
    command = child_command("duo.llama.json_schema")
    try:
        done = subprocess.run(
            command,
            input=checked(request, name),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=HUNG_S,
            check=False,
        )
    except OSError as error:
        raise BusyError(f"the process that checks a JSON schema cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name} takes too long as a grammar", name) from None
    if done.returncode == -signal.SIGPROF:
        advice = "simplify patterns, multipleOf or limits"
        raise UsageError(f"{name} takes longer than {MAX_S:g} s as a grammar: {advice}", name)
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace")
        what = f"is an invalid or unsupported JSON schema: {said}" if said else "needs too much memory as a grammar"
        raise UsageError(f"{name} {what}", name)
    return checked(done.stdout.decode(), name).decode()
