"""What the header of a GGUF file says about a model: for a list of models, none of which is loaded."""

from __future__ import annotations

import ctypes
import functools
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from duo.errors import ModelError
from duo.llama import library
from duo.llama.gguf_head import Head
from duo.llama.vocabulary import FIRST_TOKEN_COMPARED, MAX_SIZE_DIFFERENCE

_UINT32, _BOOL, _ARRAY, _STRING = 4, 7, 9, 8  # gguf.h, enum gguf_type
_MAX_TOKENS = 2**20  # more than any vocabulary has
_ENCODERS = ("pooling_type", "attention.causal", "decoder_start_token_id")  # keys of embedding models, BERT, T5
# Keys of models that keep a state, which cannot be rolled back token by token.
_STATES = ("ssm.conv_kernel", "ssm.state_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")


class NoTextModelError(ModelError):
    """A valid GGUF file that continues no text: an encoder, a projector of images."""


@dataclass(frozen=True, slots=True)
class VocabularySummary:
    """What decides whether two models share a vocabulary."""

    kind: str  # of tokeniser: gpt2, llama …
    adds: tuple[bool | None, bool | None]  # whether BOS and EOS are added; None: the file does not say
    bos: int | None
    eos: int | None
    tokens: tuple[bytes, ...]

    def matches(self, other: VocabularySummary) -> bool:
        """Whether llama.cpp's rule holds, as far as headers can tell: see duo.llama.vocabulary."""
        if self.kind != other.kind or abs(len(self.tokens) - len(other.tokens)) > MAX_SIZE_DIFFERENCE:
            return False
        for ours, theirs, one, another in zip(
            self.adds, other.adds, (self.bos, self.eos), (other.bos, other.eos), strict=True
        ):
            if None not in (ours, theirs) and (ours != theirs or (ours and one != another)):
                return False
        n = min(len(self.tokens), len(other.tokens))
        return self.tokens[FIRST_TOKEN_COMPARED:n] == other.tokens[FIRST_TOKEN_COMPARED:n]


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """One text model."""

    name: str  # as the file calls it; may be empty
    architecture: str
    quantisation: str  # such as Q4_K_M; empty if the file does not say
    keeps_state: bool  # recurrent or hybrid: it cannot draft
    is_recurrent: bool  # without any attention: it cannot be a target with a draft
    vocabulary: VocabularySummary


def check_text_model(head: Head, n_tokens: int | None) -> None:
    """Raise NoTextModelError unless this is the header of a model that continues text; it has `n_tokens`."""
    if head.text("general.type") not in (None, "model") or not n_tokens:
        raise NoTextModelError(f"{head.path}: not a text model")
    if any(map(head.has, _ENCODERS)):
        raise NoTextModelError(f"{head.path}: an encoder, which continues no text")


def summarize(path: Path) -> GgufSummary:
    """Read the header, and of a vocabulary all tokens. Raises ModelError, NoTextModelError among them."""
    with closing(_SummaryHead(path)) as head:
        tokens = head.tokens()
        check_text_model(head, len(tokens))
        keeps_state = any(map(head.has, _STATES))
        return GgufSummary(
            head.text("general.name") or "",
            head.architecture,
            _format(head.whole("general.file_type")),
            keeps_state,
            keeps_state and not head.number("attention.head_count"),
            VocabularySummary(
                head.text("tokenizer.ggml.model") or "",
                (head.flag("tokenizer.ggml.add_bos_token"), head.flag("tokenizer.ggml.add_eos_token")),
                head.whole("tokenizer.ggml.bos_token_id"),
                head.whole("tokenizer.ggml.eos_token_id"),
                tokens,
            ),
        )


class _SummaryHead(Head):
    """Values that a Head does not read."""

    def whole(self, key: str) -> int | None:
        """The 32-bit integer of `key`; None if there is none."""
        index = self._index(key, _UINT32)
        return None if index is None else int(_gguf().gguf_get_val_u32(self.pointer, index))

    def flag(self, key: str) -> bool | None:
        """The truth value of `key`; None if there is none."""
        index = self._index(key, _BOOL)
        return None if index is None else bool(_gguf().gguf_get_val_bool(self.pointer, index))

    def tokens(self) -> tuple[bytes, ...]:
        """The texts of the vocabulary; empty if there is none that is plausible."""
        index, pointer, get = self._index("tokenizer.ggml.tokens", _ARRAY), self.pointer, _gguf().gguf_get_arr_str
        if index is None or _gguf().gguf_get_arr_type(pointer, index) != _STRING:
            return ()
        n = int(_gguf().gguf_get_arr_n(pointer, index))
        return tuple(get(pointer, index, i) for i in range(n)) if n <= _MAX_TOKENS else ()

    def _index(self, key: str, kind: int) -> int | None:
        index = int(_gguf().gguf_find_key(self.pointer, key.encode()))
        return index if index >= 0 and _gguf().gguf_get_kv_type(self.pointer, index) == kind else None


def _format(file_type: int | None) -> str:
    """A number of llama.h, enum llama_ftype, as file names spell it: Q4_K_M."""
    if file_type is None:
        return ""
    name = llama_cpp.llama_ftype_name(file_type)
    words = name.decode().removeprefix("all ").removeprefix("(guessed) ") if name else ""
    kind, _, size = words.partition(" - ")
    if size in ("Small", "Medium", "Large") and words != "Q2_K - Medium":
        return f"{kind}_{size[0]}"
    return "" if "unknown" in words else kind


@functools.cache
def _gguf() -> ctypes.CDLL:
    pointer, index, text, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t
    functions = (
        ("get_val_u32", ctypes.c_uint32, pointer, index),
        ("get_val_bool", ctypes.c_bool, pointer, index),
        ("get_arr_str", text, pointer, index, size),
        ("get_arr_n", size, pointer, index),
        ("get_arr_type", ctypes.c_int, pointer, index),
        ("get_kv_type", ctypes.c_int, pointer, index),
        ("find_key", index, pointer, text),
    )
    return library.bind("gguf_", functions)
