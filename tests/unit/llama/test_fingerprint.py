"""Fingerprints: they tell what comparing the vocabularies themselves would, from token texts alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duo.llama.fingerprint import MAX_SIZE_DIFFERENCE, Fingerprint, fingerprint_difference, vocabulary_difference
from duo.llama.model import Model

MOST = MAX_SIZE_DIFFERENCE


@dataclass(frozen=True)
class Words:
    """What a fingerprint asks of a model."""

    texts: tuple[bytes, ...]
    vocab_type: int = 2
    bos: int = 1
    eos: int = 2
    adds_bos: bool = True
    adds_eos: bool = False

    @property
    def n_vocab(self) -> int:
        return len(self.texts)

    @property
    def model(self) -> Model:
        return cast(Model, self)

    @property
    def head(self) -> SimpleNamespace:
        return SimpleNamespace(tokens=self.texts)


@cache
def words(n: int) -> Words:
    """The first `n` tokens of an endless vocabulary."""
    return Words(tuple(b"token %d" % token for token in range(n)))


def difference(target: Words, draft: Fingerprint) -> str | None:
    """What the lead finds, which has both fingerprints."""
    return fingerprint_difference(Fingerprint.of(target.model), draft)


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
    n=st.integers(6, 3 * MOST),
    padding=st.integers(-MOST - 2, MOST + 2),
    at=st.lists(st.one_of(st.floats(0, 1, exclude_max=True), st.integers(0, 9)), max_size=2),
)
@example(n=2 * MOST, padding=MOST, at=[])
@example(n=3 * MOST, padding=-MOST, at=[0.999])
@example(n=300, padding=0, at=[4])
@example(n=300, padding=0, at=[5])
def test_a_fingerprint_tells_what_both_models_would(n: int, padding: int, at: list[float]) -> None:
    target, texts = words(n), list(words(max(6, n + padding)).texts)
    for place in at:
        texts[min(place if isinstance(place, int) else int(place * len(texts)), len(texts) - 1)] = b"another"
    draft = Words(tuple(texts)).model
    whole = vocabulary_difference(target.model, draft)
    assert (difference(target, Fingerprint.of(draft)) is None) == (whole is None), whole


def test_a_fingerprint_that_no_vocabulary_has_is_refused() -> None:
    right = Fingerprint.of(words(300).model)
    for n_vocab, hashes in (
        (0, right.hashes),
        (2**31 - 1, right.hashes),
        (300, ()),
        (300, (b"",)),
        (429, right.hashes),
    ):
        assert difference(words(300), replace(right, n_vocab=n_vocab, hashes=hashes)), (n_vocab, hashes)


def test_the_hashes_stay() -> None:
    """They are compared between two machines, of other releases perhaps."""
    hashes = Fingerprint.of(words(1100).model).hashes
    assert (len(hashes), hashes[0].hex(), hashes[-1].hex()) == (MOST + 1, "6fc937db906d9348", "7a99f61d4b749a36")
