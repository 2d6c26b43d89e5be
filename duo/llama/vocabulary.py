"""Whether one model can guess the tokens of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from duo.llama.model import Model

MAX_SIZE_DIFFERENCE = 128
FIRST_TOKEN_COMPARED = 5
BLOCK = 1024  # tokens of a vocabulary that are hashed together
_TAIL = BLOCK + MAX_SIZE_DIFFERENCE  # last tokens that are hashed one by one, so that padding can be left out
_TOKEN_BYTES = 4


def vocabulary_difference(target: Model, draft: Model) -> str | None:
    """The first thing that keeps `draft` from guessing `target`'s tokens; None if nothing does.

    The rule of llama.cpp (common/speculative.cpp): type, BOS and EOS agree, the sizes differ by at most 128,
    and the texts are the same from id 5 on. Padded vocabularies are common, so the sizes may differ.
    """
    if target.vocab_type != draft.vocab_type:
        return f"the target's vocabulary is of type {target.vocab_type}, the draft's of type {draft.vocab_type}"
    for name in ("BOS", "EOS"):
        ours, theirs = _added(target, name), _added(draft, name)
        if ours != theirs:
            return f"the target's {name} is {ours}, the draft's {theirs}"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"the target's vocabulary has {target.n_vocab} tokens, the draft's {draft.n_vocab}"
    n = min(target.n_vocab, draft.n_vocab)
    texts = zip(target.token_texts(n), draft.token_texts(n), strict=True)
    for token, (text, draft_text) in enumerate(texts):
        if token >= FIRST_TOKEN_COMPARED and text != draft_text:
            return f"token {token} is {_show(text)} to the target and {_show(draft_text)} to the draft"
    return None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What one machine must know of another's vocabulary to tell whether they fit."""

    vocab_type: int
    n_vocab: int
    bos: int  # the token put before a text; -1: none
    eos: int
    blocks: tuple[bytes, ...]  # hashes of 1,024 tokens each, the last of fewer
    tail: bytes  # hashes of the last tokens, four bytes each

    @classmethod
    def of(cls, model: Model) -> Fingerprint:
        """A model's."""
        texts = model.token_texts(model.n_vocab)
        return cls(
            model.vocab_type,
            model.n_vocab,
            model.bos if model.adds_bos else -1,
            model.eos if model.adds_eos else -1,
            tuple(_hash_block(texts, start) for start in range(0, len(texts), BLOCK)),
            _hash_each(texts[-_TAIL:]),
        )


def fingerprint_difference(target: Fingerprint, texts: Sequence[bytes], draft: Fingerprint) -> str | None:
    """As vocabulary_difference, from the fingerprints alone; `texts` are the target's tokens."""
    for what in ("vocab_type", "bos", "eos"):
        ours, theirs = getattr(target, what), getattr(draft, what)
        if ours != theirs:
            return f"the target's {what} is {ours}, the draft's {theirs}"
    if abs(target.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"the target's vocabulary has {target.n_vocab} tokens, the draft's {draft.n_vocab}"
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


def _hash_block(texts: Sequence[bytes], start: int) -> bytes:
    first = max(start, FIRST_TOKEN_COMPARED)
    parts = b"".join(len(text).to_bytes(4, "little") + text for text in texts[first : start + BLOCK])
    return blake2b(parts, digest_size=8).digest()


def _hash_each(texts: Sequence[bytes]) -> bytes:
    return b"".join(blake2b(text, digest_size=_TOKEN_BYTES).digest() for text in texts)


def _added(model: Model, name: str) -> str:
    """The token that the vocabulary puts around a text, in words."""
    adds, token = (model.adds_bos, model.bos) if name == "BOS" else (model.adds_eos, model.eos)
    return f"token {token}" if adds else "not added"


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
