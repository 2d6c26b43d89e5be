"""What the header of a GGUF file says about a model: for a list of models, none of which is loaded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from duo.errors import ModelError
from duo.llama.fingerprint import Fingerprint, text_difference
from duo.llama.gguf_head import TOKENS, Head
from duo.llama.library import file_type_name

_ENCODERS = ("pooling_type", "attention.causal", "decoder_start_token_id")  # keys of embedding models, BERT, T5
# Keys of models that keep a state, which cannot be rolled back token by token.
_STATES = ("ssm.conv_kernel", "ssm.state_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")
# llama.h, enum llama_vocab_type, by the names of tokenisers. Others differ in their tokens, too.
_TYPES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}


class NoTextModelError(ModelError):
    """A valid GGUF file that continues no text: an encoder, a projector of images."""


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """One text model."""

    name: str  # as the file calls it; may be empty
    architecture: str
    quantisation: str  # such as Q4_K_M; empty if the file does not say
    keeps_state: bool  # recurrent or hybrid: it cannot draft
    is_recurrent: bool  # without any attention: it cannot be a target with a draft
    vocabulary: Fingerprint  # without hashes
    tokens: tuple[bytes, ...]

    def shares_vocabulary(self, other: GgufSummary) -> bool:
        """Whether one could draft for the other, as far as headers can tell."""
        return not (self.vocabulary.difference(other.vocabulary) or text_difference(self.tokens, other.tokens))


def check_text_model(head: Head, n_tokens: int) -> None:
    """Raise NoTextModelError unless this is the header of a model that continues text; it has `n_tokens`."""
    if head.text("general.type") not in ("", "model") or not n_tokens:
        raise NoTextModelError(f"{head.path}: not a text model")
    if any(map(head.has, _ENCODERS)):
        raise NoTextModelError(f"{head.path}: an encoder, which continues no text")


def summarize(path: Path) -> GgufSummary:
    """Read the header, and of a vocabulary all tokens. Raises ModelError, NoTextModelError among them."""
    with closing(Head(path)) as head:
        tokens = tuple(token for token in head.values(TOKENS) if isinstance(token, bytes))
        check_text_model(head, len(tokens))
        keeps_state = any(map(head.has, _STATES))
        vocab_type = _TYPES.get(head.text("tokenizer.ggml.model"), -1)
        bos, eos = (_added(head, name) for name in ("bos", "eos"))
        return GgufSummary(
            head.text("general.name"),
            head.architecture,
            _quantisation(head.integer("general.file_type")),
            keeps_state,
            keeps_state and not head.number("attention.head_count"),
            Fingerprint(vocab_type, len(tokens), bos, eos),
            tokens,
        )


def _added(head: Head, name: str) -> int | None:
    """The token `name` (bos, eos) if it is added to a text; -1: it is not; None: the file does not say."""
    is_added = head.integer(f"tokenizer.ggml.add_{name}_token")
    return head.integer(f"tokenizer.ggml.{name}_token_id") if is_added else None if is_added is None else -1


def _quantisation(file_type: int | None) -> str:
    """A number of llama.h, enum llama_ftype, as file names spell it: Q4_K_M."""
    name = file_type_name(file_type) if file_type is not None else ""
    kind, _, size = name.partition(" - ")
    if size in ("Small", "Medium", "Large") and name != "Q2_K - Medium":
        return f"{kind}_{size[0]}"
    return "" if "unknown" in name else kind
