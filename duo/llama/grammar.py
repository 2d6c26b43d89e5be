"""Grammar: constrains a text, in llama.cpp's GBNF (llama.cpp, grammars/README.md)."""

import functools
import signal
import subprocess
import weakref

import llama_cpp
import numpy as np

from duo.errors import BusyError, GrammarError, UsageError
from duo.llama import child
from duo.llama.context import Logits
from duo.llama.convert_schema import HUNG_S, MAX_GRAMMAR, MAX_S
from duo.llama.grammar_process import ACCEPT, ALLOWS, MASK, PARSE, GrammarProcess
from duo.llama.model import Model

MAX_SCHEMA = 2**16  # bytes

_idle: weakref.WeakKeyDictionary[Model, GrammarProcess] = weakref.WeakKeyDictionary()


class Grammar:
    """A grammar and its state after a text, for one thread. All methods raise UsageError at a limit, ClosedError."""

    def __init__(self, model: Model, text: str) -> None:
        """`text` is GBNF with a rule `root`. Raises UsageError if it is invalid."""
        data = checked(text)
        process = _idle.pop(model, None)
        if process is None or process.has_ended:
            process = GrammarProcess(model)
        self._process = process
        release = weakref.finalize(self, _release, model, process)
        if process.ask(PARSE, data) == b"\0":
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
    """Keep the process for the model's next grammar."""
    if not process.closed:
        _idle[model] = process


def checked(grammar: str) -> bytes:
    """A grammar for llama.cpp. Raises UsageError if it is empty, too large or not text."""
    if not grammar.strip() or "\0" in grammar:  # llama.cpp would ignore an empty one, and stop at a NUL
        raise UsageError("the grammar is invalid: it is empty or contains a NUL")
    try:
        data = grammar.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the grammar is invalid: {error}") from None
    if len(data) > MAX_GRAMMAR:
        raise UsageError(f"the grammar has more than {MAX_GRAMMAR} bytes")
    return data


@functools.lru_cache(maxsize=16)
def schema_grammar(schema: str, name: str, *, several: bool = False) -> str:
    """The grammar of the JSON that matches a schema, called `name` in messages. Raises UsageError; blocks for seconds.

    `several`: it is an array of schemas, whose roots are called `s0-root`, `s1-root` and so on.
    """
    data = schema.encode("utf-8", "replace")
    if len(data) > MAX_SCHEMA:
        raise UsageError(f"{name} has more than {MAX_SCHEMA} bytes", name)
    command = child.call("duo.llama.convert_schema", llama_cpp.__path__[0], *["several"] * several)
    try:
        done = subprocess.run(
            command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=HUNG_S, check=False
        )
    except OSError as error:
        raise BusyError(f"the process that converts a JSON schema cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name} takes too long to convert to a grammar", name) from None
    if done.returncode == -signal.SIGPROF:
        raise UsageError(f"{name} takes longer than {MAX_S:g} s to convert to a grammar", name)
    if done.returncode or len(done.stdout) > MAX_GRAMMAR:
        reason = done.stdout[:1000].decode("utf-8", "replace") or "cannot be converted to a grammar"
        raise UsageError(f"{name} {reason}", name)
    return done.stdout.decode()
