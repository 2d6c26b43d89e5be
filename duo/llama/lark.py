"""Lark: grammars in llguidance's syntax (guidance-ai/llguidance, docs/syntax.md), which JSON schemas are part of.

Only for processes with limits: llguidance's own leave schemas of 100 bytes that take 10 s and 400 MB.
"""

import functools
import json

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from duo.llama.check_grammar import MARK, reason
from duo.llama.vocabulary import Vocabulary


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
