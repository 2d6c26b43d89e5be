"""PromptLookup: what it proposes, how sure it is, and that its index follows the text."""

import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.types import Origin

A, B, C, D, E, X, Y = range(1, 8)


def chances(lookup: PromptLookup, n: int) -> list[float]:
    return [chance for chance, _ in lookup.propose(n).chances]


def tokens(lookup: PromptLookup, n: int) -> tuple[int, ...]:
    return tuple(candidate.token for candidate in lookup.propose(n).candidates)


def made(*text: int) -> PromptLookup:
    lookup = PromptLookup()
    lookup.begin(text)
    return lookup


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ((A, B, C, D, E, X, A, B), (C, D, E)),  # what followed the last tokens before, as long as there is hope
        ((C, A, B, X, D, A, B, Y, C, A, B), (X, D, A)),  # the longest match
        ((B, X, A, B, Y, A, B), (Y, A, B)),
        ((A, X, B, A), (X, B)),  # of a single token
    ],
)
def test_it_proposes_what_followed_the_longest_match(text: tuple[int, ...], proposed: tuple[int, ...]) -> None:
    lookup = made(*text)
    assert tokens(lookup, len(proposed)) == proposed
    assert tokens(lookup, 1) == proposed[:1]
    assert lookup.propose(1).origin is Origin.LOOKUP


def test_matches_vote_with_the_squares_of_their_lengths() -> None:
    longest = (Y, A, B, X, 10)
    assert tokens(made(A, B, C, 11, A, B, C, *longest, Y, A, B), 1) == (X,)  # 9 against 8
    assert tokens(made(A, B, C, 11, A, B, C, 12, A, B, C, *longest, Y, A, B), 1) == (C,)  # against 12


def test_longer_matches_are_surer_and_undisputed_ones() -> None:
    (two,), (three,) = chances(made(A, B, C, X, A, B), 1), chances(made(D, A, B, C, X, D, A, B), 1)
    (unanimous,) = chances(made(A, B, C, X, A, B, C, Y, A, B), 1)
    (disputed,) = chances(made(A, B, C, X, A, B, D, Y, A, B), 1)
    (one,) = chances(made(A, B, X, A), 1)
    assert max(disputed, one) < two < three
    assert two < unanimous


@pytest.mark.parametrize("right", [True, False])
def test_it_learns_how_often_it_is_right_in_this_text_only(right: bool) -> None:
    block = list(range(10, 20))
    lookup = made(*block, *block[:2])
    before = chances(lookup, 1)
    for i in range(30):
        lookup.extend([block[2] if right else 100 + i, 200 + i, *block[:2]])
    (now,) = chances(lookup, 1)
    assert now > 0.8 if right else now < 0.2
    lookup.begin([*block, *block[:2]])
    assert chances(lookup, 1) == before


def test_no_part_of_a_text_of_another_owner_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take other times, by what the other one's text is."""
    done, lookup = list[str](), PromptLookup()

    def spied(name: str, act: Callable[..., None]) -> Callable[..., None]:
        def spy(*arguments: object) -> None:
            done.append(name)
            act(*arguments)

        return spy

    monkeypatch.setattr(PromptLookup, "_append", spied("append", PromptLookup._append))
    monkeypatch.setattr(PromptLookup, "_remove", spied("remove", PromptLookup._remove))
    for owner, text, n in (("", (A, B, C), 3), ("a", (A, B, C), 3), ("b", (A, B, X, A), 4), ("b", (A, B, X, A, B), 1)):
        done.clear()
        lookup.begin(text, owner)
        assert done == n * ["append"]
    assert tokens(lookup, 1) == (X,)


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=8), st.randoms(use_true_random=False))
def test_an_index_that_followed_other_texts_is_that_of_a_fresh_one(parts: list[list[int]], dice: random.Random) -> None:
    lookup, text = PromptLookup(), list[int]()
    for part in parts:
        if dice.random() < 0.5:
            text = text[: dice.randrange(len(text) + 1)] + part
            lookup.begin(text)
        else:
            text = text + part
            lookup.extend(part)
    lookup.begin(text)
    assert lookup.propose(99) == made(*text).propose(99), "what was learned about another text is forgotten"


@given(st.lists(st.integers(0, 2), max_size=200))
def test_what_it_proposes_follows_an_occurrence_of_the_last_two_tokens_or_one(text: list[int]) -> None:
    found = list(tokens(made(*text), 5))  # fewer after a hopeless one
    ends = [[i for i in range(n, len(text)) if text[i - n : i] == text[-n:]] for n in (2, 1)]
    assert not found or any(text[i : i + len(found)] == found for i in ends[0] or ends[1])
    assert bool(found) == bool(ends[1])


def test_a_token_takes_constant_time_however_long_the_text_is() -> None:
    def n_lines(n_text: int) -> int:
        """Lines of Python executed for 20 more tokens after a text in which everything occurs often."""
        dice, count = random.Random(1), 0
        lookup = made(*(dice.randrange(4) for _ in range(n_text)))
        more = [dice.randrange(4) for _ in range(20)]

        def trace(*_: object) -> object:
            nonlocal count
            count += 1
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]
        lookup.extend(more)
        chances(lookup, 16)
        sys.settrace(None)
        return count

    assert n_lines(50_000) < 1.5 * n_lines(2_000)
