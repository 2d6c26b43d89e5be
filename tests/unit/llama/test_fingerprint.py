"""Fingerprints: they tell what comparing the vocabularies themselves would, from token texts alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duo.llama.fingerprint import BLOCK, MAX_SIZE_DIFFERENCE, Fingerprint, fingerprint_difference, vocabulary_difference
from tests.unit.link.backs import Words

MOST = MAX_SIZE_DIFFERENCE
SIZES = [BLOCK * n + more for n in (1, 2) for more in (-MOST - 1, -MOST, -1, 0, 1, MOST - 1, MOST, MOST + 1)]


@cache
def words(n: int) -> Words:
    """The first `n` tokens of an endless vocabulary."""
    return Words(tuple(b"token %d" % token for token in range(n)))


def difference(target: Words, draft: Fingerprint) -> str | None:
    """What the lead finds, which has the target's tokens and the draft's fingerprint."""
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
    target, draft = words(300).model, replace(words(300), **changes).model
    for found in (difference(words(300), Fingerprint.of(draft)), vocabulary_difference(target, draft)):
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
    target, texts = words(n), list(words(max(6, n + padding)).texts)
    for place in at:
        texts[min(place if isinstance(place, int) else int(place * len(texts)), len(texts) - 1)] = b"another"
    draft = Words(tuple(texts)).model
    whole = vocabulary_difference(target.model, draft)
    assert (difference(target, Fingerprint.of(draft)) is None) == (whole is None), whole


@given(
    n_vocab=st.one_of(st.integers(0, 2**31 - 1), st.integers(2500 - MOST, 2500 + MOST)),
    blocks=st.one_of(st.just(None), st.lists(st.binary(max_size=12), max_size=5)),
    tail=st.one_of(st.just(None), st.binary(max_size=64), st.integers(0, 8192).map(bytes)),
)
def test_any_other_fingerprint_is_refused(n_vocab: int, blocks: list[bytes] | None, tail: bytes | None) -> None:
    right = Fingerprint.of(words(2500).model)
    others: dict[str, Any] = {"blocks": None if blocks is None else tuple(blocks), "tail": tail}
    made_up = replace(right, n_vocab=n_vocab, **{name: one for name, one in others.items() if one is not None})
    assert (difference(words(2500), made_up) is None) == (made_up == right)


def test_the_hashes_stay() -> None:
    """They are compared between two machines, of other releases perhaps."""
    one = Fingerprint.of(words(1100).model)
    assert [block.hex() for block in one.blocks] == ["58a90eea59afa918", "ad6437a7731798f5"]
    assert (one.tail[:4].hex(), one.tail[-4:].hex()) == ("05175e47", "ae99e28a")
