"""Grammar: what a text may be, in llama.cpp's GBNF (llama.cpp, grammars/README.md)."""

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

_UNKNOWN = "it is no GBNF with a rule root (llama.cpp may have written more to standard error)"
Logits = npt.NDArray[np.float32]

# llama.h, llama_token_data
_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Grammar(Handle):
    """A grammar and how far a text has come in it. Used by one thread at a time."""

    def __init__(self, model: Model, text: str) -> None:
        """`text` is GBNF with a rule `root`. Raises UsageError if it is none."""
        if not text.strip() or "\0" in text:  # which llama.cpp would take for no grammar, or for the end of it
            raise UsageError("the grammar cannot be used: it is empty or holds a NUL")
        with library.collect_errors() as errors, library.capture_stderr() as lines:
            pointer = llama_cpp.llama_sampler_init_grammar(model.vocabulary, text.encode(), b"root")
        if not pointer:
            # Other threads may have written to the same stream.
            reasons = [
                line.removeprefix("parse: ") for line in (*lines, *errors) if "grammar" in line or "parse" in line
            ]
            raise UsageError(f"the grammar cannot be used: {reasons[0] if reasons else _UNKNOWN}")
        super().__init__(pointer, llama_cpp.llama_sampler_free, parent=model)
        self._one = np.zeros(1, _TOKEN)
        self._all = np.zeros(model.n_vocab, _TOKEN)
        self._ids = np.arange(model.n_vocab)

    def allows(self, token: int) -> bool:
        """Whether the text may go on with `token`."""
        self._one["id"], self._one["logit"] = token, 0.0
        self._apply(self._one)
        return bool(self._one["logit"][0] == 0.0)

    def mask(self, logits: Logits) -> Logits:
        """A copy of logits `[n_vocab]` with -inf for all tokens that it may not go on with. Takes milliseconds.

        Raises GrammarError if there is no other.
        """
        self._all["id"], self._all["logit"] = self._ids, logits
        self._apply(self._all)
        if self._all["logit"].max() == -np.inf:
            raise GrammarError("the grammar allows no token at all")
        masked: Logits = self._all["logit"].copy()
        return masked

    def accept(self, token: int) -> None:
        """The text goes on with `token`, which must be allowed: llama.cpp ends the process if it is not."""
        llama_cpp.llama_sampler_accept(self.pointer, token)

    def _apply(self, tokens: npt.NDArray[np.void]) -> None:
        data = tokens.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data, len(tokens), -1, False)
        llama_cpp.llama_sampler_apply(self.pointer, ctypes.byref(array))


def schema_grammar(schema: str, name: str) -> str:
    """The grammar of all JSON that fits a JSON schema. Raises UsageError for a schema that cannot be used."""
    try:
        json.loads(schema)
        return str(json_schema_to_gbnf(schema))
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is no JSON: {error}") from None
    except Exception as error:  # the converter raises whatever it stumbles over
        raise UsageError(f"{name} is no JSON schema that can be used: {error or type(error).__name__}") from None
