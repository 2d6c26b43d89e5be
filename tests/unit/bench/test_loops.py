"""Loops and equal texts."""

from __future__ import annotations

import pytest

from duo.bench.rounds import distinct_share, first_difference, loops


def test_a_text_loops_below_thirty_per_cent_distinct_4_grams() -> None:
    words = [str(i) for i in range(33)]  # 30 different 4-grams and three across the seam of each repetition
    assert not loops(" ".join(words * 3))
    assert loops(" ".join(words * 4))
    assert distinct_share("a b c d " * 25) == pytest.approx(4 / 97)
    assert distinct_share("too short") == 1.0


def test_what_the_prompt_contains_is_not_counted() -> None:
    prompt, loop = " ".join(map(str, range(100))), " ".join(["on and on"] * 10)
    assert not loops(f"{prompt} well", prompt), "almost nothing is left"
    assert loops(f"{prompt} {loop}", prompt)
    assert not loops(f"{prompt} {loop}"), "the copy hides the loop"


@pytest.mark.parametrize(
    ("text", "reference", "place"),
    [
        ("the cat sat", "the cow sat", 5),
        ("the cat", "the cat sat", None),  # one may be some tokens longer
        ("the cat sat", "the", None),
        ("the", "the cat sat", 3),  # it ended early
        ("", "x", 0),
        ("the ca\ufffd", "the café", None),  # a character that the last token cut
        ("the co\ufffd", "the café", 5),
    ],
)
def test_texts_differ_from_a_character_on(text: str, reference: str, place: int | None) -> None:
    assert first_difference(text, reference) == place
