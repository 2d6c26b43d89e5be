"""The table of predictions that `duo plan` and `duo tune` print."""

from __future__ import annotations

import re
from typing import NamedTuple

ROWS = ("plain", "sequential", "concurrent", "prepared", "limit")
_ROW = re.compile(r"([\w ]+?) +([\d.]+) tokens/s +([\d.]+)×   (.+)")


class Row(NamedTuple):
    rate: float
    factor: float
    words: str


def table(text: str) -> tuple[dict[str, Row], str]:
    """The rows as in ROWS, of which "prepared" may be missing, and the last line."""
    *lines, best = text.splitlines()
    found = [_ROW.fullmatch(line) for line in lines]
    assert None not in found, text
    rows = {match[1]: Row(float(match[2]), float(match[3]), match[4]) for match in found if match}
    assert list(rows) == [row for row in ROWS if row != "prepared" or row in rows]
    return rows, best
