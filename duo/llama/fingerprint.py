"""Whether one model can draft tokens for another: from loaded models, from headers, or from fingerprints.

llama.cpp's rule (common/speculative.cpp): type, BOS and EOS agree, the sizes differ by at most 128 (padding is common),
and the texts are the same from id 5 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duo.llama.model import Model

MAX_SIZE_DIFFERENCE = 128
BLOCK = 1024  # tokens of a vocabulary that are hashed together
_FIRST = 5  # token that is compared
_TAIL = BLOCK + MAX_SIZE_DIFFERENCE  # last tokens, which are hashed one by one: padding can be ignored
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of a vocabulary, for comparing two of them without the tokens' texts."""

    vocab_type: int
    n_vocab: int
    bos: int | None  # the token that is added before a text; -1: none; None: not known
    eos: int | None  # and after it
    blocks: tuple[bytes, ...] = ()  # hashes of 1,024 tokens each, the last of fewer
    tail: bytes = b""  # hashes of the last tokens, four bytes each

    @classmethod
    def of(cls, model: Model) -> Fingerprint:
        """The fingerprint of a model's vocabulary."""
        texts = model.token_texts(model.n_vocab)
        blocks = tuple(_hash_block(texts, start) for start in range(0, len(texts), BLOCK))
        return replace(cls.without_texts(model), blocks=blocks, tail=_hash_each(texts[-_TAIL:]))

    @classmethod
    def without_texts(cls, model: Model) -> Fingerprint:
        """The same without hashes."""
        bos, eos = model.bos if model.adds_bos else -1, model.eos if model.adds_eos else -1
        return cls(model.vocab_type, model.n_vocab, bos, eos)

    def difference(self, draft: Fingerprint) -> str | None:
        """The first difference from the draft's in anything but the texts."""
        if self.vocab_type != draft.vocab_type:
            return "the vocabularies are of different types"
        for name, ours, theirs in (("BOS", self.bos, draft.bos), ("EOS", self.eos, draft.eos)):
            if ours is not None and theirs is not None and ours != theirs:
                return f"the target adds {name} {ours}, the draft {theirs} (-1: none)"
        if abs(self.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
            return f"the target's vocabulary has {self.n_vocab} tokens, the draft's {draft.n_vocab}"
        return None


def vocabulary_difference(target: Model, draft: Model) -> str | None:
    """The first difference that prevents `draft` from drafting for `target`; None if the vocabularies match."""
    n = min(target.n_vocab, draft.n_vocab)
    difference = Fingerprint.without_texts(target).difference(Fingerprint.without_texts(draft))
    return difference or text_difference(target.token_texts(n), draft.token_texts(n))


def text_difference(target: Sequence[bytes], draft: Sequence[bytes]) -> str | None:
    """The first difference of the tokens that both have."""
    for token, (text, draft_text) in enumerate(zip(target, draft, strict=False)):
        if token >= _FIRST and text != draft_text:
            shown = [repr(one.decode("utf-8", "replace")) for one in (text, draft_text)]
            return f"token {token} is {shown[0]} to the target and {shown[1]} to the draft"
    return None


def fingerprint_difference(target: Fingerprint, texts: Sequence[bytes], draft: Fingerprint) -> str | None:
    """Like vocabulary_difference, from fingerprints; `texts` are the target's tokens."""
    if difference := target.difference(draft):
        return difference
    n = min(target.n_vocab, draft.n_vocab)
    whole = n // BLOCK  # blocks that both have in full
    first, offset = max(whole * BLOCK, _FIRST), draft.n_vocab - len(draft.tail) // _TOKEN_BYTES
    start, end = (_TOKEN_BYTES * (token - offset) for token in (first, n))
    is_same = start >= 0 and _hash_each(texts[first:n]) == draft.tail[start:end]
    return None if is_same and target.blocks[:whole] == draft.blocks[:whole] else "tokens of the vocabularies differ"


def _hash_block(texts: Sequence[bytes], start: int) -> bytes:
    parts = (len(text).to_bytes(4, "little") + text for text in texts[max(start, _FIRST) : start + BLOCK])
    return blake2b(b"".join(parts), digest_size=8).digest()


def _hash_each(texts: Sequence[bytes]) -> bytes:
    return b"".join(blake2b(text, digest_size=_TOKEN_BYTES).digest() for text in texts)
