"""Grammar: constrains a text, in llama.cpp's GBNF (llama.cpp, grammars/README.md)."""

from __future__ import annotations

import ctypes
import json

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama_grammar import json_schema_to_gbnf

from duo.errors import GrammarError, UsageError
from duo.llama import library
from duo.llama.handle import Handle
from duo.llama.model import Model

_UNKNOWN = "it is not GBNF with a rule `root` (llama.cpp may have written more to standard error)"
Logits = npt.NDArray[np.float32]

# llama.h, llama_token_data
_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Grammar(Handle):
    """A grammar and its state after the text so far. Used by one thread at a time."""

    def __init__(self, model: Model, text: str) -> None:
        """`text` is GBNF with a rule `root`. Raises UsageError if it is invalid."""
        if not text.strip() or "\0" in text:  # llama.cpp would ignore an empty one, and stop at a NUL
            raise UsageError("the grammar is invalid: it is empty or contains a NUL")
        with library.collect_errors() as errors, library.capture_stderr() as lines:
            pointer = llama_cpp.llama_sampler_init_grammar(model.vocabulary, text.encode(), b"root")
        if not pointer:
            # Other threads may have written to standard error, too.
            reasons = [
                line.removeprefix("parse: ") for line in (*lines, *errors) if "grammar" in line or "parse" in line
            ]
            raise UsageError(f"the grammar is invalid: {reasons[0] if reasons else _UNKNOWN}")
        super().__init__(pointer, llama_cpp.llama_sampler_free, parent=model)
        self._one = np.zeros(1, _TOKEN)
        self._all = np.zeros(model.n_vocab, _TOKEN)
        self._ids = np.arange(model.n_vocab)

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""
        self._one["id"], self._one["logit"] = token, 0.0
        self._apply(self._one)
        return bool(self._one["logit"][0] == 0.0)

    def mask(self, logits: Logits) -> Logits:
        """A copy of logits `[n_vocab]` with -inf for all tokens that are not allowed. Takes milliseconds.

        Raises GrammarError if no token is allowed.
        """
        self._all["id"], self._all["logit"] = self._ids, logits
        self._apply(self._all)
        if self._all["logit"].max() == -np.inf:
            raise GrammarError("the grammar allows no token")
        masked: Logits = self._all["logit"].copy()
        return masked

    def accept(self, token: int) -> None:
        """Advance by `token`, which must be allowed: llama.cpp aborts the process if it is not."""
        llama_cpp.llama_sampler_accept(self.pointer, token)

    def _apply(self, tokens: npt.NDArray[np.void]) -> None:
        data = tokens.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data, len(tokens), -1, False)
        llama_cpp.llama_sampler_apply(self.pointer, ctypes.byref(array))


def schema_grammar(schema: str, name: str) -> str:
    """The grammar of all JSON documents that match a JSON schema; `name` is the schema's in messages.

    Raises UsageError for a schema that is invalid or unsupported.
    """
    try:
        json.loads(schema)
        return str(json_schema_to_gbnf(schema))
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not valid JSON: {error}") from None
    except Exception as error:  # the converter checks nothing, so it may raise anything
        raise UsageError(f"{name} is an invalid or unsupported JSON schema: {error or type(error).__name__}") from None
