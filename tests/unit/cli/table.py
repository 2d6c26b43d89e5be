"""The table of predictions that `duo plan` and `duo tune` print."""

from __future__ import annotations

import re
from typing import NamedTuple

_ROW = re.compile(r"([\w ]+?) +([\d.]+) tokens/s +([\d.]+)×   (.+)")


class Row(NamedTuple):
    rate: float
    factor: float
    words: str


def table(text: str) -> tuple[dict[str, Row], str]:
    """The rows for plain decoding, the sequential and the concurrent schedule and the limit, and the last line."""
    *lines, best = text.splitlines()
    found = [_ROW.fullmatch(line) for line in lines]
    assert None not in found, text
    rows = {match[1]: Row(float(match[2]), float(match[3]), match[4]) for match in found if match}
    assert (len(rows), next(iter(rows))) == (4, "plain")
    return rows, best
