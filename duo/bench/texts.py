"""Detects looping texts and the first difference between two texts."""

from __future__ import annotations

import re
from collections import Counter

LEAST_DISTINCT = 0.30  # share of a text's 4-grams; looping text is easy to draft and inflates every speed-up
LEAST_NEW = 0.05  # share of a text's 4-grams: with fewer that are not in the prompt, the text repeats only the prompt


def distinct_share(text: str, prompt: str = "") -> float:
    """The share of distinct 4-grams of words and punctuation marks, among those that the prompt does not contain.

    Each occurrence in the prompt accounts for one in the text, so that copying the prompt once lowers nothing, and
    copying it again and again does. 1 if the prompt accounts for almost all.
    """
    grams = _grams(text)
    new = grams - _grams(prompt)
    return len(new) / new.total() if new.total() >= max(1, LEAST_NEW * grams.total()) else 1.0


def loops(text: str, prompt: str = "") -> bool:
    """Whether a text repeats itself, not its prompt, so much that it is excluded from the figures."""
    return distinct_share(text, prompt) < LEAST_DISTINCT


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+|[^\w\s]", text)
    return Counter(zip(words, words[1:], words[2:], words[3:], strict=False))


def first_difference(text: str, reference: str) -> int | None:
    """The index of the first differing character; None if the shorter text is a prefix of the other.

    A text shorter than half of the reference differs at its end.
    """
    both = min(len(text.rstrip("\ufffd")), len(reference.rstrip("\ufffd")))  # the last character may be incomplete
    place = next((i for i in range(both) if text[i] != reference[i]), None)
    return len(text) if place is None and len(text) < len(reference) / 2 else place
