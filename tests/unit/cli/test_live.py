"""The status lines of --live."""

from __future__ import annotations

import pytest
from rich.text import Text

from duo.cli.terminal.live import status, wrapped
from duo.diagnose.pulse import Reading
from duo.spec.schedule import Schedule

READING = Reading(256, 120.44, 99.96, 0.834, 0.5, 1.0, 5, Schedule.ASYNC)


def test_three_lines() -> None:
    assert [line.plain.rstrip() for line in status(READING)] == [
        "│ 120.4 tokens/s · 100.0 mean · 256 tokens · 83% accepted",
        "│ target ██████████░░░░░░░░░░  50%  draft ████████████████████ 100%",
        "│ async · 5 candidates ahead",
    ]


def test_outcomes_prepared() -> None:
    for reading, line in (
        (
            READING._replace(n_prepared=212, hits=0.643),
            "│ async · 5 candidates ahead · 212 outcomes prepared · 64% hits",
        ),
        (READING._replace(n_prepared=3), "│ async · 5 candidates ahead · 3 outcomes prepared"),
    ):
        assert status(reading)[2].plain == line


def test_an_ascii_terminal_before_the_first_rates() -> None:
    assert [line.plain.rstrip() for line in status(Reading(n_tokens=1), ascii_only=True)] == [
        "| - tokens/s | - mean | 1 tokens",
        f"| target {'-' * 20}   0%  draft {'-' * 20}   0%",
        "| off | 0 candidates ahead",
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("abc", ["abc"]),
        ("x" * 25, ["x" * 10, "x" * 10, "x" * 5]),
        ("漢" * 6, ["漢" * 5, "漢"]),
        ("x漢漢漢漢漢", ["x漢漢漢漢", "漢"]),
        ("a\tb", ["a       b"]),
    ],
)
def test_the_rows_of_a_line_on_ten_columns(text: str, rows: list[str]) -> None:
    assert [row.plain for row in wrapped(Text(text), 10)] == rows
