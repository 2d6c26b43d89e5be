"""The process that applies grammars: GBNF by llama.cpp, Lark by llguidance (docs/syntax.md), which JSON schemas are in.

See grammar.py, which starts it.
"""

import ctypes
import functools
import json
import logging
import resource
import signal
import sys
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from duo.config import ModelConfig
from duo.errors import DuoError
from duo.llama.json_schema import MARK, MAX_S, reason
from duo.llama.model import Model
from duo.llama.vocabulary import Vocabulary

_USUAL = 2**15  # tokens of a vocabulary; for all tokens of a larger one, more than MAX_S
MAX_MEMORY = 2**29  # beyond the vocabulary

# Requests. Followed by a grammar: b"\1" if it is valid. By a token: b"\1" if it is allowed; no answer. By nothing: a
# bit for each token; nothing, when the vocabulary is loaded.
PARSE, ALLOWS, ACCEPT, MASK, READY = b"g", b"?", b"+", b"*", b"r"

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
        most = n_pages * resource.getpagesize() + MAX_MEMORY
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


class Lark:
    """A grammar and its state after a text. At a limit of llguidance, its methods raise ValueError."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        """Raises ValueError with the reason if the grammar is invalid."""
        options, _, rules = text.removeprefix(MARK).partition("\n")
        # By default, a mask has only one spelling of a text that must follow, and a draft may have another.
        try:
            options = json.dumps(dict(json.loads(options or "{}"), no_forcing=True))
        except (ValueError, TypeError, RecursionError):
            raise ValueError(f"its first line must be {MARK} {{}}, with options in JSON") from None
        self._matcher = LLMatcher(tokenizer(vocabulary), f"{MARK} {options}\n{rules}", log_level=0)
        self._end_tokens, self._n_vocab = vocabulary.end_tokens, vocabulary.n_vocab
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(reason(self._matcher.get_error()))

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""
        if token in self._end_tokens:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]) == 1)

    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether each token is allowed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
        allowed[self._end_tokens] = self._matcher.is_accepting()
        return allowed

    def accept(self, token: int) -> None:
        """Advance by `token`."""
        if token not in self._end_tokens:
            self._matcher.consume_token(token)
            self._check()


@functools.cache
def tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """The vocabulary for llguidance. Takes tenths of a second."""
    return LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))


class _Tokens:
    """What a TokenizerWrapper reads."""

    bos_token_id = None
    eos_token_id = None  # llguidance adds one: a vocabulary may have several, or none

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A token that is not shown has no bytes, and is never allowed. To llguidance, 0xFF marks special tokens.
        pieces = map(vocabulary.piece, range(vocabulary.n_vocab))
        self.tokens = [b"" if piece[:1] == b"\xff" else piece for piece in pieces]
        self.special_token_ids = vocabulary.end_tokens
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        return self._vocabulary.fragment(text)
