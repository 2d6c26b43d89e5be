"""Fingerprints: they tell what comparing the vocabularies themselves would, from token texts alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duo.link.client import hello
from duo.link.messages import MAX_FROM_DRAFT, encode, from_draft
from duo.llama.fingerprint import BLOCK, MAX_SIZE_DIFFERENCE, Fingerprint, fingerprint_difference, vocabulary_difference
from tests.unit.link.backs import Words

MOST = MAX_SIZE_DIFFERENCE
SIZES = [BLOCK * n + more for n in (1, 2) for more in (-MOST - 1, -MOST, -1, 0, 1, MOST - 1, MOST, MOST + 1)]


@cache
def words(n: int) -> Words:
    """The first `n` tokens of an endless vocabulary."""
    return Words(tuple(b"token %d" % token for token in range(n)))


def changed(vocabulary: Words, token: int) -> Words:
    """The same, with one token different."""
    return replace(vocabulary, texts=(*vocabulary.texts[:token], b"another", *vocabulary.texts[token + 1 :]))


def difference(target: Words, draft: Words | Fingerprint) -> str | None:
    """What the lead finds, which has the target's tokens and the draft's fingerprint."""
    if isinstance(draft, Words):
        draft = Fingerprint.of(draft.model)
    return fingerprint_difference(Fingerprint.of(target.model), target.texts, draft)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_type": 3}, "of different types"),
        ({"bos": 3}, "target adds BOS 1, the draft 3"),
        ({"adds_bos": False}, "target adds BOS 1, the draft -1"),
        ({"adds_eos": True}, "target adds EOS -1, the draft 2"),
        ({"eos": 9}, None),  # it is not added
        ({"texts": words(300 + MOST + 1).texts}, "has 300 tokens, the draft's 429"),
        ({"texts": words(300 + MOST).texts}, None),
    ],
)
def test_what_is_compared_besides_the_texts(changes: dict[str, Any], said: str | None) -> None:
    target, draft = words(300), replace(words(300), **changes)
    for found in (difference(target, draft), vocabulary_difference(target.model, draft.model)):
        assert found is None if said is None else said in str(found)


@given(
    n=st.one_of(st.integers(6, 3000), st.sampled_from(SIZES)),
    padding=st.integers(-MOST - 2, MOST + 2),
    at=st.lists(st.one_of(st.floats(0, 1, exclude_max=True), st.integers(0, 9)), max_size=2),
)
@example(n=2 * BLOCK, padding=MOST, at=[])
@example(n=2 * BLOCK + MOST, padding=-MOST, at=[BLOCK / (2 * BLOCK)])
@example(n=300, padding=0, at=[4])
@example(n=300, padding=0, at=[5])
def test_a_fingerprint_tells_what_both_models_would(n: int, padding: int, at: list[float]) -> None:
    target, draft = words(n), words(max(6, n + padding))
    for place in at:
        token = place if isinstance(place, int) else int(place * draft.n_vocab)
        draft = changed(draft, min(token, draft.n_vocab - 1))
    whole = vocabulary_difference(target.model, draft.model)
    assert (difference(target, draft) is None) == (whole is None), whole


@given(
    n_vocab=st.one_of(st.integers(0, 2**31 - 1), st.integers(2500 - MOST, 2500 + MOST)),
    blocks=st.one_of(st.just(None), st.lists(st.binary(max_size=12), max_size=5)),
    tail=st.one_of(st.just(None), st.binary(max_size=64), st.integers(0, 8192).map(bytes)),
)
def test_any_other_fingerprint_is_refused(n_vocab: int, blocks: list[bytes] | None, tail: bytes | None) -> None:
    target = words(2500)
    right = Fingerprint.of(target.model)
    made_up = replace(
        right,
        n_vocab=n_vocab,
        blocks=right.blocks if blocks is None else tuple(blocks),
        tail=right.tail if tail is None else tail,
    )
    assert (difference(target, made_up) is None) == (made_up == right)


def test_a_fingerprint_fits_into_a_message_and_its_hashes_stay() -> None:
    """They are compared between two machines, of other releases perhaps."""
    texts = [bytes([65 + token % 26]) * (token % 7) for token in range(1024)] * 257
    model = replace(Words(tuple(texts[: 2**18])), path=Words().path.with_name("m" * 250)).model
    said = encode(hello("t" * 256, model))
    assert len(said) < MAX_FROM_DRAFT
    assert from_draft(said) == hello("t" * 256, model)
    one = Fingerprint.of(words(1100).model)
    assert [block.hex() for block in one.blocks] == ["58a90eea59afa918", "ad6437a7731798f5"]
    assert (one.tail[:4].hex(), one.tail[-4:].hex()) == ("05175e47", "ae99e28a")
