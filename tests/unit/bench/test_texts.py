"""Loops and equal texts."""

from __future__ import annotations

import pytest

from duo.bench.texts import distinct_share, first_difference, loops


def test_a_loop_is_told_from_a_text() -> None:
    text = "A lighthouse keeper who had not seen a ship for three weeks wrote letters to the sea every morning."
    assert distinct_share(text) == 1.0
    assert not loops(text)
    assert loops("on and on and " * 20)
    assert distinct_share("a b c d " * 25) == pytest.approx(4 / 97)
    assert distinct_share("too short") == 1.0


def test_a_text_loops_below_thirty_per_cent() -> None:
    words = [str(i) for i in range(33)]  # 30 different 4-grams and three across the seam of each repetition
    assert not loops(" ".join(words * 3))
    assert loops(" ".join(words * 4))


def test_texts_part_at_the_first_character_that_differs() -> None:
    assert first_difference("the cat sat", "the cow sat") == 5
    assert first_difference("the cat", "the cat sat") is None  # one may be some tokens longer
    assert first_difference("the ca\ufffd", "the café") is None  # a character that the last token cut
    assert first_difference("the co\ufffd", "the café") == 5
    assert first_difference("", "x") == 0
    assert first_difference("the", "the cat sat") == 3  # it ended early
    assert first_difference("the cat sat", "the") is None
