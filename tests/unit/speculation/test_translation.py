"""Translator: what the draft is told, and what the target is offered."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizers import Words
from tests.translating import Translating

TARGET = Words(
    " the", " cat", " sat", " c", " mat", "at", ".", " in", " inter", " national", "national", all_bytes=True
)
DRAFT = Words(
    " the", " ca", "t", " s", "at", " cats", " dog", " international", " inter", "nation", "al", all_bytes=True
)


class Bench(Translating):
    """With toy vocabularies."""

    target: Words
    draft: Words

    def __init__(
        self, target: Words = TARGET, draft: Words = DRAFT, rest: bytes = b"", *, replace: bool = True
    ) -> None:
        super().__init__(target, draft, rest, replace=replace)

    def write(self, *pieces: str | bytes, confidence: float = 1.0, tentative: bool = False) -> None:
        """The draft drafts these pieces."""
        self.candidate(*self.draft.of(*pieces), confidence=confidence, tentative=tentative)

    def say(self, *pieces: str | bytes) -> None:
        """The target adds these pieces."""
        self.accept(*self.target.of(*pieces))


# Towards the target


def test_a_target_token_is_offered_once_the_next_drafted_token_has_not_changed_it() -> None:
    bench = Bench()
    bench.write(" ca")
    assert bench.offered == []
    bench.write("t")
    assert bench.offered == [], "' ca' was ' c' and 'a'"
    bench.write(" s")
    assert bench.offered == [b" cat"]
    bench.write("at", " dog")
    assert bench.offered == [b" cat", b" sat"]


def test_a_token_that_changes_after_all_is_replaced_and_counted() -> None:
    target = Words(" inter", " international", all_bytes=True)
    for replace in (True, False):
        bench = Bench(target, replace=replace)
        bench.write(" inter", "nation")
        assert bench.offered == [b" inter"]
        bench.write("al", " dog")
        assert bench.offered == [b" international" if replace else b" inter"]
        assert bench.translator.n_lost == 1


def test_an_accepted_token_in_other_pieces_keeps_the_drafted_text() -> None:
    bench = Bench()
    bench.write(" ca", "t", " s", "at", " dog", " dog")
    bench.say(" c")
    assert bench.offered[:2] == [b"at", b" sat"], "the rest of the text, as a fragment of its own"
    assert bench.translator.n_lost == 1
    assert bench.tokens == DRAFT.of(" ca", "t", " s", "at", " dog", " dog"), "the draft goes on"


def test_the_confidence_is_the_lowest_of_the_drafted_tokens_that_begin_within() -> None:
    bench = Bench(Words(" international", " c", "at", all_bytes=True))
    for piece, confidence in ((" inter", 3.0), ("nation", 2.0), ("al", 4.0), (" ca", 7.0), ("t", 5.0)):
        bench.write(piece, confidence=confidence, tentative=True)
    assert bench.pending == [(0, 2.0), (1, 7.0), (2, 5.0)]


@pytest.mark.parametrize("token", [DRAFT.end, DRAFT.special])
def test_the_end_of_the_draft_is_that_of_the_target(token: int) -> None:
    bench = Bench()
    bench.write(" ca", "t")
    bench.candidate(token, confidence=6.0)
    assert bench.pending == [(TARGET.of(" cat")[0], 1.0), (TARGET.end, 6.0)]
    bench.write(" dog")
    assert bench.pending[2:] == [(TARGET.end, 0.0)], "so that the draft pauses"


# Towards the draft


def test_after_a_contradiction_the_last_word_is_tokenised_again() -> None:
    bench = Bench()
    bench.write(" the", " ca", "t", " s")
    bench.say(" the", " c", "a", "t", "s")
    assert bench.told == [b" the", b" cats"]
    assert bench.tokens == DRAFT.of(" the", " cats")


def test_text_far_back_is_not_tokenised_again() -> None:
    asked: list[bytes] = []

    class Noting(Words):
        def fragment(self, text: bytes) -> list[int]:
            asked.append(text)
            return super().fragment(text)

    bench = Bench(draft=Noting(" the", all_bytes=True))
    for _ in range(200):
        bench.say("x")
    assert max(map(len, asked)) <= 66
    assert bench.tokens == bench.draft.of(*"x" * 200)


def test_a_word_that_the_target_splits_may_be_one_token_of_the_draft() -> None:
    bench = Bench()
    bench.say(" inter")
    assert (bench.told, bench.is_open) == ([b" inter"], True)
    bench.lengthen(DRAFT.of(" international")[0], 2.0, tentative=True)
    assert bench.offered == [b"national"]
    bench.write(" dog", tentative=True)
    bench.say("national")
    assert bench.told == [b" international"]
    assert bench.tokens == DRAFT.of(" international", " dog")
    assert bench.translator.n_retold == 1


# Any vocabularies

ALPHABET = st.sampled_from(["a", "b", " ", "\n", "é", "日", "\U0001f642"])
PIECES = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=12)


class Case(NamedTuple):
    """Two vocabularies, and what happens."""

    target: Words
    draft: Words
    events: list[tuple[str, int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    target, draft = (Words("a", *draw(PIECES), all_bytes=draw(st.booleans())) for _ in range(2))
    kinds = st.sampled_from(["accept", "right", "right", "guess", "guess", "guess", "end"])
    events = st.lists(st.tuples(kinds, st.integers(0, 10_000)), max_size=40)
    return Case(target, draft, draw(events))


@given(cases(), st.booleans(), st.booleans())
def test_both_sides_are_told_the_same_text(case: Case, replace: bool, tentative: bool) -> None:
    """What the draft has spells the accepted text; what is offered spells what was drafted."""
    bench = Bench(case.target, case.draft, replace=replace)
    for kind, number in case.events:
        if kind == "guess" and bench.is_open and number % 2:
            longer = [one for one in case.draft.pieces if one.startswith(bench.told[-1]) and one != bench.told[-1]]
            if longer:
                bench.lengthen(case.draft.of(longer[number % len(longer)])[0], tentative=tentative)
        elif kind == "guess":
            bench.candidate(number % case.draft.n_vocab, tentative=tentative)
        elif kind == "end":
            bench.candidate(case.draft.end, tentative=tentative)
        elif kind == "right" and bench.pending:
            bench.accept(bench.pending[0][0])
        else:
            bench.accept(number % case.target.n_vocab)
        bench.check()
