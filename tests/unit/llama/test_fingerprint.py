"""Fingerprints: they tell what comparing the vocabularies themselves would, from token texts alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
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


@cache
def fingerprint(vocabulary: Words) -> Fingerprint:
    return Fingerprint.of(vocabulary.model)


def changed(vocabulary: Words, token: int, text: bytes = b"another") -> Words:
    """The same, with one token different."""
    return replace(vocabulary, texts=(*vocabulary.texts[:token], text, *vocabulary.texts[token + 1 :]))


def difference(target: Words, draft: Words | Fingerprint) -> str | None:
    """What the lead finds, which has the target's tokens and the draft's fingerprint."""
    if isinstance(draft, Words):
        draft = fingerprint(draft)
    return fingerprint_difference(fingerprint(target), target.texts, draft)


# Padding


@pytest.mark.parametrize("n", [*SIZES, 1, 4, 5, 6, 300, MOST, 49152, 151936])
def test_vocabularies_padded_by_up_to_128_tokens_fit_and_no_others(n: int) -> None:
    for padding in (0, 1, MOST - 1, MOST):
        assert difference(words(n), words(n + padding)) is None, padding
        assert difference(words(n + padding), words(n)) is None, padding
    assert difference(changed(words(n), n // 2), changed(words(n), n // 2)) is None
    for sizes in ((n, n + MOST + 1), (n + MOST + 1, n)):
        said = difference(words(sizes[0]), words(sizes[1]))
        assert said == f"the target's vocabulary has {sizes[0]} tokens, the draft's {sizes[1]}"


# Differences


def places(n: int) -> list[int]:
    """Tokens at all edges, from 5 to `n` - 1."""
    edges = [5, BLOCK, 2 * BLOCK, n - MOST, n - BLOCK, n - BLOCK - MOST, n]
    return sorted({token for edge in edges for token in (edge - 1, edge, edge + 1) if 5 <= token < n} | {(n + 5) // 2})


@pytest.mark.parametrize("padding", [-MOST, -1, 0, 1, MOST])
@pytest.mark.parametrize("n", [*SIZES, 140, 300])
def test_a_token_that_differs_is_found_from_the_sixth_on(n: int, padding: int) -> None:
    target, draft = words(n), words(n + padding)
    n_shared = min(n, n + padding)
    for token in places(n_shared):
        said = difference(target, changed(draft, token))
        assert said is not None
        _, first, _, last, _ = said.split()
        assert int(first) <= token <= int(last) < n_shared, token
    assert difference(target, changed(draft, 4)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_type": 3}, "of type BPE, the draft's of type WPM"),
        ({"vocab_type": 99}, "of type BPE, the draft's of type 99"),
        ({"bos": 3}, "BOS is token 1, the draft's token 3"),
        ({"adds_bos": False}, "BOS is token 1, the draft's not added"),
        ({"adds_eos": True}, "EOS is not added, the draft's token 2"),
        ({"eos": 9}, None),  # it is not added
    ],
)
def test_type_bos_and_eos_are_compared(changes: dict[str, Any], said: str | None) -> None:
    target, draft = words(300), replace(words(300), **changes)
    for found in (difference(target, draft), vocabulary_difference(target.model, draft.model)):
        assert found is None if said is None else said in str(found)


@given(
    n=st.one_of(st.integers(6, 3000), st.sampled_from(SIZES)),
    padding=st.integers(-MOST - 2, MOST + 2),
    at=st.lists(st.one_of(st.floats(0, 1, exclude_max=True), st.integers(0, 9)), max_size=2),
)
def test_a_fingerprint_tells_what_both_models_would(n: int, padding: int, at: list[float]) -> None:
    target, draft = words(n), words(max(6, n + padding))
    for place in at:
        token = place if isinstance(place, int) else int(place * draft.n_vocab)
        draft = changed(draft, min(token, draft.n_vocab - 1))
    whole = vocabulary_difference(target.model, draft.model)
    assert (difference(target, Fingerprint.of(draft.model)) is None) == (whole is None), whole


# Fingerprints that no vocabulary has


@given(
    n_vocab=st.one_of(st.integers(0, 2**31 - 1), st.integers(2500 - MOST, 2500 + MOST)),
    blocks=st.one_of(st.just(None), st.lists(st.binary(max_size=12), max_size=5)),
    tail=st.one_of(st.just(None), st.binary(max_size=64), st.integers(0, 8192).map(bytes)),
)
def test_any_other_fingerprint_is_refused(n_vocab: int, blocks: list[bytes] | None, tail: bytes | None) -> None:
    target, right = words(2500), fingerprint(words(2500))
    made_up = replace(
        right,
        n_vocab=n_vocab,
        blocks=right.blocks if blocks is None else tuple(blocks),
        tail=right.tail if tail is None else tail,
    )
    assert (difference(target, made_up) is None) == (made_up == right)


@pytest.mark.parametrize("n", [300, 49152, 262144])
def test_a_fingerprint_fits_into_a_message(n: int) -> None:
    texts = [bytes([65 + token % 26]) * (token % 7) for token in range(1024)] * (n // 1024 + 1)
    model = replace(Words(tuple(texts[:n])), path=Words().path.with_name("m" * 250)).model
    one = Fingerprint.of(model)
    assert (len(one.tail), len(one.blocks)) == (4 * min(n, BLOCK + MOST), -(-n // BLOCK))
    said = encode(hello("t" * 256, model))
    assert len(said) < MAX_FROM_DRAFT
    assert from_draft(said) == hello("t" * 256, model)


def test_the_hashes_are_the_same_in_all_releases_of_the_protocol() -> None:
    """They are compared between two machines."""
    one = fingerprint(words(1100))
    assert [block.hex() for block in one.blocks] == ["58a90eea59afa918", "ad6437a7731798f5"]
    assert one.tail[:4].hex() == "05175e47"
    assert one.tail[-4:].hex() == "ae99e28a"
