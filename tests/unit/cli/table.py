"""The table of predictions that `duo plan` and `duo tune` print."""

from __future__ import annotations

import re
from typing import NamedTuple

_ROW = re.compile(r"(plain|taking turns|overlapped|limit) +([\d.]+) tokens/s +([\d.]+)×   (.+)")


class Row(NamedTuple):
    rate: float
    factor: float
    words: str


def table(text: str) -> tuple[dict[str, Row], str]:
    """The four rows, and the last line."""
    *lines, best = text.splitlines()
    found = [_ROW.fullmatch(line) for line in lines]
    assert None not in found, text
    rows = {match[1]: Row(float(match[2]), float(match[3]), match[4]) for match in found if match}
    assert list(rows) == ["plain", "taking turns", "overlapped", "limit"]
    return rows, best
