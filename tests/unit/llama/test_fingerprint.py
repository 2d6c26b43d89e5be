"""Fingerprints: they tell what comparing the vocabularies themselves would, from token texts alone."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duo.llama.fingerprint import MAX_SIZE_DIFFERENCE, Fingerprint, fingerprint_difference, vocabulary_difference

MOST = MAX_SIZE_DIFFERENCE


def texts(n: int) -> list[bytes]:
    """The first `n` tokens of an endless vocabulary."""
    return [b"token %d" % token for token in range(n)]


def model(tokens: Sequence[bytes], **changes: Any) -> Any:
    """What a fingerprint asks of a model with this vocabulary."""
    facts = {"vocab_type": 2, "bos": 1, "eos": 2, "adds_bos": True, "adds_eos": False} | changes
    return SimpleNamespace(header=SimpleNamespace(tokens=tokens), n_vocab=len(tokens), **facts)


WORDS = model(texts(300))
PRINT = Fingerprint.of(WORDS)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (model(texts(300), vocab_type=3), "of different types"),
        (model(texts(300), bos=3), "target adds BOS 1, the draft 3"),
        (model(texts(300), adds_bos=False), "target adds BOS 1, the draft -1"),
        (model(texts(300), adds_eos=True), "target adds EOS -1, the draft 2"),
        (model(texts(300), eos=9), None),  # it is not added
        (model(texts(300 + MOST + 1)), "has 300 tokens, the draft's 429"),
        (model(texts(300 + MOST)), None),
    ],
)
def test_what_is_compared_besides_the_texts(draft: Any, said: str | None) -> None:
    for found in (fingerprint_difference(PRINT, Fingerprint.of(draft)), vocabulary_difference(WORDS, draft)):
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
    target, tokens = model(texts(n)), texts(max(6, n + padding))
    for place in at:
        tokens[min(place if isinstance(place, int) else int(place * len(tokens)), len(tokens) - 1)] = b"another"
    draft = model(tokens)
    whole = vocabulary_difference(target, draft)
    assert (fingerprint_difference(Fingerprint.of(target), Fingerprint.of(draft)) is None) == (whole is None), whole


@pytest.mark.parametrize(
    ("n_vocab", "hashes"),
    [(0, PRINT.hashes), (2**31 - 1, PRINT.hashes), (429, PRINT.hashes), (300, ()), (300, (b"",)), (0, ())],
)
def test_a_fingerprint_that_no_vocabulary_has_is_refused(n_vocab: int, hashes: tuple[bytes, ...]) -> None:
    assert fingerprint_difference(PRINT, replace(PRINT, n_vocab=n_vocab, hashes=hashes))


def test_the_hashes_stay() -> None:
    """They are compared between two machines, of other releases perhaps."""
    hashes = Fingerprint.of(model(texts(1100))).hashes
    assert (len(hashes), hashes[0].hex(), hashes[-1].hex()) == (MOST + 1, "6fc937db906d9348", "7a99f61d4b749a36")
