"""Whether one model can draft tokens for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from duo.llama.model import Model

MAX_SIZE_DIFFERENCE = 128
FIRST_TOKEN_COMPARED = 5
BLOCK = 1024  # tokens of a vocabulary that are hashed together
_TAIL = BLOCK + MAX_SIZE_DIFFERENCE  # last tokens, which are hashed one by one: padding can be ignored
_TOKEN_BYTES = 4
_TYPES = ("NONE", "SPM", "BPE", "WPM", "UGM", "RWKV", "PLAMO2")  # llama.h, enum llama_vocab_type


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of a vocabulary, for comparing two of them without the tokens' texts."""

    vocab_type: int
    n_vocab: int
    bos: int  # the token that is added before a text; -1: none
    eos: int  # and after it
    blocks: tuple[bytes, ...] = ()  # hashes of 1,024 tokens each, the last of fewer
    tail: bytes = b""  # hashes of the last tokens, four bytes each

    @classmethod
    def of(cls, model: Model) -> Fingerprint:
        """The fingerprint of a model's vocabulary."""
        texts = model.token_texts(model.n_vocab)
        blocks = tuple(_hash_block(texts, start) for start in range(0, len(texts), BLOCK))
        return replace(_without_texts(model), blocks=blocks, tail=_hash_each(texts[-_TAIL:]))


def vocabulary_difference(target: Model, draft: Model) -> str | None:
    """The first difference that prevents `draft` from drafting for `target`; None if the vocabularies match.

    llama.cpp's rule (common/speculative.cpp): type, BOS and EOS agree, the sizes differ by at most 128 (padding is
    common), and the texts are the same from id 5 on.
    """
    if difference := _first_difference(_without_texts(target), _without_texts(draft)):
        return difference
    n = min(target.n_vocab, draft.n_vocab)
    texts = zip(target.token_texts(n), draft.token_texts(n), strict=True)
    for token, (text, draft_text) in enumerate(texts):
        if token >= FIRST_TOKEN_COMPARED and text != draft_text:
            return f"token {token} is {_show(text)} to the target and {_show(draft_text)} to the draft"
    return None


def fingerprint_difference(target: Fingerprint, texts: Sequence[bytes], draft: Fingerprint) -> str | None:
    """Like vocabulary_difference, from fingerprints; `texts` are the target's tokens."""
    if difference := _first_difference(target, draft):
        return difference
    n = min(target.n_vocab, draft.n_vocab)
    whole = n // BLOCK
    for i, (ours, theirs) in enumerate(zip(target.blocks[:whole], draft.blocks[:whole], strict=False)):
        if ours != theirs:
            return f"tokens {i * BLOCK} to {(i + 1) * BLOCK - 1} differ"
    first, offset = max(whole * BLOCK, FIRST_TOKEN_COMPARED), draft.n_vocab - len(draft.tail) // _TOKEN_BYTES
    start, end = (_TOKEN_BYTES * (token - offset) for token in (first, n))
    if len(draft.blocks) < whole or start < 0 or _hash_each(texts[first:n]) != draft.tail[start:end]:
        return f"tokens {first} to {n - 1} differ"
    return None


def _without_texts(model: Model) -> Fingerprint:
    bos, eos = model.bos if model.adds_bos else -1, model.eos if model.adds_eos else -1
    return Fingerprint(model.vocab_type, model.n_vocab, bos, eos)


def _first_difference(target: Fingerprint, draft: Fingerprint) -> str | None:
    """The first difference in anything but the texts."""
    if target.vocab_type != draft.vocab_type:
        types = [_type(one.vocab_type) for one in (target, draft)]
        return f"the target's vocabulary is of type {types[0]}, the draft's of type {types[1]}"
    for name, ours, theirs in (("BOS", target.bos, draft.bos), ("EOS", target.eos, draft.eos)):
        if ours != theirs:
            return f"the target's {name} is {_added(ours)}, the draft's {_added(theirs)}"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"the target's vocabulary has {target.n_vocab} tokens, the draft's {draft.n_vocab}"
    return None


def _type(vocab_type: int) -> str:
    return _TYPES[vocab_type] if 0 <= vocab_type < len(_TYPES) else str(vocab_type)


def _hash_block(texts: Sequence[bytes], start: int) -> bytes:
    first = max(start, FIRST_TOKEN_COMPARED)
    parts = b"".join(len(text).to_bytes(4, "little") + text for text in texts[first : start + BLOCK])
    return blake2b(parts, digest_size=8).digest()


def _hash_each(texts: Sequence[bytes]) -> bytes:
    return b"".join(blake2b(text, digest_size=_TOKEN_BYTES).digest() for text in texts)


def _added(token: int) -> str:
    return f"token {token}" if token >= 0 else "not added"


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
