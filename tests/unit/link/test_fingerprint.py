"""A fingerprint tells what the vocabulary itself would: without a model, with token texts alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.link.client import hello
from duo.link.messages import MAX_FROM_DRAFT, encode, from_draft
from duo.llama.model import Model
from duo.llama.vocabulary import BLOCK, MAX_SIZE_DIFFERENCE, Fingerprint, fingerprint_difference, vocabulary_difference

MOST = MAX_SIZE_DIFFERENCE
SIZES = [BLOCK * n + more for n in (1, 2) for more in (-MOST - 1, -MOST, -1, 0, 1, MOST - 1, MOST, MOST + 1)]


@dataclass(frozen=True, slots=True, repr=False)
class Words:
    """What a fingerprint asks of a model."""

    texts: tuple[bytes, ...]
    vocab_type: int = 2
    bos: int = 1
    eos: int = 2
    adds_bos: bool = True
    adds_eos: bool = False
    path: Path = Path("words.gguf")

    @property
    def n_vocab(self) -> int:
        return len(self.texts)

    @property
    def model(self) -> Model:
        return cast(Model, self)

    def token_texts(self, n: int) -> list[bytes]:
        return list(self.texts[:n])

    def but(self, token: int, text: bytes = b"another") -> Words:
        """The same, with one token different."""
        return replace(self, texts=(*self.texts[:token], text, *self.texts[token + 1 :]))


@cache
def words(n: int) -> Words:
    """The first `n` tokens of a vocabulary that has as many as anybody wants."""
    return Words(tuple(b"token %d" % token for token in range(n)))


@cache
def fingerprint(vocabulary: Words) -> Fingerprint:
    return Fingerprint.of(vocabulary.model)


def difference(target: Words, draft: Words | Fingerprint) -> str | None:
    """What the lead finds, which has the target's tokens and the draft's fingerprint."""
    if isinstance(draft, Words):
        draft = fingerprint(draft)
    return fingerprint_difference(fingerprint(target), target.texts, draft)


# Padding


@pytest.mark.parametrize("n", [*SIZES, 1, 4, 5, 6, 300, MOST, 49152, 151936])
def test_equal_vocabularies_fit(n: int) -> None:
    assert difference(words(n), words(n)) is None
    assert difference(words(n).but(n // 2), words(n).but(n // 2)) is None


@pytest.mark.parametrize("n", [*SIZES, 5, 300])
def test_a_vocabulary_padded_by_up_to_128_fits_either_way(n: int) -> None:
    for padding in range(1, MOST + 1):
        assert difference(words(n), words(n + padding)) is None, padding
        assert difference(words(n + padding), words(n)) is None, padding


@pytest.mark.parametrize("n", [*SIZES, 5, 300])
def test_one_token_more_than_that_does_not_fit(n: int) -> None:
    for sizes in ((n, n + MOST + 1), (n + MOST + 1, n)):
        said = difference(words(sizes[0]), words(sizes[1]))
        assert said == f"the target's vocabulary has {sizes[0]} tokens, the draft's {sizes[1]}"


@pytest.mark.parametrize("n", [1000, 1024, 1100])
@pytest.mark.parametrize("padding", [0, 3, MOST])
def test_what_pads_them_need_not_be_the_same(n: int, padding: int) -> None:
    target, draft = words(n), words(n + padding)
    for token in range(n, n + padding):
        draft = draft.but(token, b"padding")
    assert difference(target, draft) is None
    assert difference(draft, target) is None


# Differences


def places(n: int) -> list[int]:
    """Tokens at the edges of everything there is, from 5 to `n` - 1."""
    edges = [5, BLOCK, 2 * BLOCK, n - MOST, n - BLOCK, n - BLOCK - MOST, n]
    return sorted({token for edge in edges for token in (edge - 1, edge, edge + 1) if 5 <= token < n} | {(n + 5) // 2})


@pytest.mark.parametrize("padding", [-MOST, -1, 0, 1, 5, MOST])
@pytest.mark.parametrize("n", [*SIZES, 140, 300])
def test_a_token_that_differs_is_found_wherever_it_is(n: int, padding: int) -> None:
    target, draft = words(n), words(n + padding)
    n_shared = min(n, n + padding)
    for token in places(n_shared):
        assert difference(target, draft) is None
        first, last = _said_range(difference(target, draft.but(token)))
        assert first <= token <= last < n_shared, token


@pytest.mark.parametrize("padding", [-MOST, 0, MOST])
@pytest.mark.parametrize("n", [*SIZES, 140, 300])
def test_the_first_five_tokens_may_differ(n: int, padding: int) -> None:
    for token in range(5):
        assert difference(words(n), words(n + padding).but(token)) is None, token
    assert difference(words(n), words(n + padding).but(5)) is not None


def test_tokens_that_run_together_to_the_same_bytes_differ() -> None:
    target = Words((*words(5).texts, b"ab", b"c", *words(1100).texts))
    draft = Words((*words(5).texts, b"a", b"bc", *words(1100).texts))
    assert difference(target, draft) == "tokens 0 to 1023 differ"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_type": 3}, "vocab_type is 2, the draft's 3"),
        ({"bos": 3}, "bos is 1, the draft's 3"),
        ({"adds_bos": False}, "bos is 1, the draft's -1"),
        ({"adds_eos": True}, "eos is -1, the draft's 2"),
        ({"eos": 9}, None),  # it is not added
    ],
)
def test_what_stands_around_a_text_is_compared(changes: dict[str, Any], said: str | None) -> None:
    found = difference(words(300), replace(words(300), **changes))
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
        draft = draft.but(min(token, draft.n_vocab - 1))
    whole = vocabulary_difference(target.model, draft.model)
    assert (difference(target, Fingerprint.of(draft.model)) is None) == (whole is None), whole


# Fingerprints that nobody's vocabulary has


@pytest.mark.parametrize("n", [1023, 1024, 1025, 1152, 2048, 2049, 2500])
@pytest.mark.parametrize("padding", [-MOST, -1, 0, 1, MOST])
def test_a_part_of_a_fingerprint_is_refused(n: int, padding: int) -> None:
    target, whole = words(n), fingerprint(words(n + padding))
    assert difference(target, whole) is None
    n_shared = min(n, n + padding)
    for n_blocks in range(n_shared // BLOCK):
        assert difference(target, replace(whole, blocks=whole.blocks[:n_blocks])) is not None
    if n_shared % BLOCK:
        n_needed = 4 * (n_shared % BLOCK)
        for n_left in (0, 1, 3, 4, n_needed - 4, n_needed - 1, len(whole.tail) - 4, len(whole.tail) - 1):
            assert difference(target, replace(whole, tail=whole.tail[:n_left])) is not None, n_left


@pytest.mark.parametrize("what", ["blocks", "tail"])
def test_one_bit_of_a_hash_is_enough(what: str) -> None:
    target, whole = words(2500), fingerprint(words(2500))
    for i in range(2):
        blocks = tuple(_flipped(block, 0) if j == i else block for j, block in enumerate(whole.blocks))
        spoilt = (
            replace(whole, blocks=blocks) if what == "blocks" else replace(whole, tail=_flipped(whole.tail, -1 - i))
        )
        assert difference(target, spoilt) is not None


@given(
    n_vocab=st.one_of(st.integers(0, 2**31 - 1), st.integers(2500 - MOST, 2500 + MOST)),
    blocks=st.one_of(st.just(None), st.lists(st.binary(max_size=12), max_size=5)),
    tail=st.one_of(st.just(None), st.binary(max_size=64), st.integers(0, 8192).map(bytes)),
)
def test_no_fingerprint_raises_anything(n_vocab: int, blocks: list[bytes] | None, tail: bytes | None) -> None:
    target, right = words(2500), fingerprint(words(2500))
    made_up = replace(
        right,
        n_vocab=n_vocab,
        blocks=right.blocks if blocks is None else tuple(blocks),
        tail=right.tail if tail is None else tail,
    )
    fits = difference(target, made_up) is None
    assert fits == (made_up == right)


def test_a_vocabulary_of_nothing_raises_nothing() -> None:
    nothing = Fingerprint(2, 0, 1, -1, (), b"")
    assert difference(words(300), nothing) is not None
    assert difference(words(3), replace(nothing, tail=bytes(8192))) in (None, "tokens 0 to -1 differ")


@pytest.mark.parametrize("n", [300, 49152, 262144, 1_000_000])
def test_a_fingerprint_is_short_and_fits_into_a_message(n: int) -> None:
    texts = [bytes([65 + token % 26]) * (token % 7) for token in range(1024)] * (n // 1024 + 1)
    model = Words(tuple(texts[:n]), path=Path(f"{'m' * 1000}.gguf")).model
    one = Fingerprint.of(model)
    assert len(one.tail) == 4 * min(n, BLOCK + MOST)
    assert len(one.blocks) == -(-n // BLOCK)
    said = encode(hello("t" * 256, model))
    assert len(said) < MAX_FROM_DRAFT
    assert from_draft(said) == hello("t" * 256, model)


def test_blocks_depend_on_their_own_tokens_alone() -> None:
    before, after = fingerprint(words(4096)), fingerprint(words(4096).but(1500))
    assert [ours == theirs for ours, theirs in zip(before.blocks, after.blocks, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert before.tail == after.tail
    assert all(one != other for one, other in pairwise(before.blocks))


def test_the_hashes_do_not_change_from_one_release_to_the_next() -> None:
    """They are compared between two machines, which may run different ones of the same protocol."""
    one = fingerprint(words(1100))
    assert [block.hex() for block in one.blocks] == ["58a90eea59afa918", "ad6437a7731798f5"]
    assert one.tail[:4].hex() == "05175e47"
    assert one.tail[-4:].hex() == "ae99e28a"


def _said_range(said: str | None) -> tuple[int, int]:
    """The tokens among which a difference was found."""
    assert said is not None
    _, first, _, last, _ = said.split()
    return int(first), int(last)


def _flipped(data: bytes, i: int) -> bytes:
    spoilt = bytearray(data)
    spoilt[i] ^= 1
    return bytes(spoilt)
