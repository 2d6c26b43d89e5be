"""Whether one model can draft tokens for another: from loaded models, from headers, or from fingerprints.

llama.cpp's rule (common/speculative.cpp): type, BOS and EOS agree, the sizes differ by at most 128 (padding is common),
and the texts are the same from id 5 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duo.llama.vocabulary import Vocabulary

MAX_SIZE_DIFFERENCE = 128
_FIRST = 5  # token that is compared


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of a vocabulary, for comparing two of them without the tokens' texts."""

    vocab_type: int
    n_vocab: int
    bos: int | None  # the token that the vocabulary adds before a text; -1: none; None: not known
    eos: int | None  # the token that the vocabulary adds after a text; as `bos`
    hashes: tuple[bytes, ...] = ()  # of all tokens but the last 128, of one more, and so on up to all

    @classmethod
    def of(cls, model: Vocabulary) -> Fingerprint:
        """The fingerprint of a model's vocabulary."""
        texts = model.header.tokens
        n_common = max(_FIRST, len(texts) - MAX_SIZE_DIFFERENCE)
        digest, hashes = blake2b(digest_size=8), []
        for some in (texts[_FIRST:n_common], *([text] for text in texts[n_common:])):
            digest.update(b"".join(len(text).to_bytes(4, "little") + text for text in some))
            hashes.append(digest.digest())
        return replace(cls._without_texts(model), hashes=tuple(hashes))

    @classmethod
    def _without_texts(cls, model: Vocabulary) -> Fingerprint:
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

    def hash_of(self, n: int) -> bytes | None:
        """The hash of the first `n` tokens; None if there is none."""
        index = len(self.hashes) - 1 - (self.n_vocab - n)
        return self.hashes[index] if index >= 0 else None


def vocabulary_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """The first difference that prevents `draft` from drafting for `target`; None if the vocabularies match."""
    difference = Fingerprint._without_texts(target).difference(Fingerprint._without_texts(draft))
    return difference or text_difference(target.header.tokens, draft.header.tokens)


def text_difference(target: Iterable[bytes], draft: Iterable[bytes]) -> str | None:
    """The first difference of the tokens that both have."""
    for token, texts in enumerate(zip(target, draft, strict=False)):
        if token >= _FIRST and texts[0] != texts[1]:
            ours, theirs = (repr(text.decode("utf-8", "replace")) for text in texts)
            return f"token {token} is {ours} to the target and {theirs} to the draft"
    return None


def fingerprint_difference(target: Fingerprint, draft: Fingerprint) -> str | None:
    """Like vocabulary_difference, from fingerprints."""
    n = min(target.n_vocab, draft.n_vocab)
    is_same = target.hash_of(n) == draft.hash_of(n) is not None
    return target.difference(draft) or (None if is_same else "tokens of the vocabularies differ")
