"""Texts: whether one loops, and where two part. Pure."""

from __future__ import annotations

import re

LEAST_DISTINCT = 0.30  # of a text's 4-grams; loops are easy to guess and flatter every speculation


def distinct_share(text: str) -> float:
    """Which share of the 4-grams of words and signs is distinct."""
    words = re.findall(r"\w+|[^\w\s]", text)
    grams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def loops(text: str) -> bool:
    """Whether a text repeats itself so much that it has no place in a mean."""
    return distinct_share(text) < LEAST_DISTINCT


def first_difference(text: str, reference: str) -> int | None:
    """The first character where two texts part; one may be some tokens longer.

    A text that has less than half of the reference parts where it ends.
    """
    both = min(len(text.rstrip("\ufffd")), len(reference.rstrip("\ufffd")))  # the last one may be cut
    place = next((i for i in range(both) if text[i] != reference[i]), None)
    return len(text) if place is None and len(text) < len(reference) / 2 else place
