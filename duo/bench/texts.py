"""Detects looping texts and the first difference between two texts."""

from __future__ import annotations

import re

LEAST_DISTINCT = 0.30  # share of a text's 4-grams; looping text is easy to draft and inflates every speed-up


def distinct_share(text: str) -> float:
    """The share of distinct 4-grams of words and punctuation marks."""
    words = re.findall(r"\w+|[^\w\s]", text)
    grams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def loops(text: str) -> bool:
    """Whether a text repeats itself so much that it is excluded from the figures."""
    return distinct_share(text) < LEAST_DISTINCT


def first_difference(text: str, reference: str) -> int | None:
    """The index of the first differing character; None if the shorter text is a prefix of the other.

    A text shorter than half of the reference differs at its end.
    """
    both = min(len(text.rstrip("\ufffd")), len(reference.rstrip("\ufffd")))  # the last character may be incomplete
    place = next((i for i in range(both) if text[i] != reference[i]), None)
    return len(text) if place is None and len(text) < len(reference) / 2 else place
