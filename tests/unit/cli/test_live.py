"""The status lines of --live."""

import pytest
from rich.text import Text

from duo.cli.terminal.writer import status, wrapped
from duo.engine.recorder import Recorder, Totals
from duo.engine.statistics import StepRecord
from duo.speculation.modes import Schedule
from duo.speculation.types import Origin


def lines(metrics: Recorder, *, ascii_only: bool = False) -> list[str]:
    totals = Totals(metrics)
    totals.update()
    return [line.plain.rstrip() for line in status(totals, 5, 4.0, ascii_only=ascii_only)]


def test_three_lines() -> None:
    metrics = Recorder()
    metrics.steps.append(StepRecord(1.0, 1.0, 0, 0, 1, Schedule.OFF))
    assert lines(metrics, ascii_only=True) == [
        "| - tokens/s | - mean | 1 tokens",
        f"| target {'-' * 20}   0%  draft {'-' * 20}   0%",
        "| off | 5 candidates ahead",
    ]
    metrics.decoded(2.0, 3.0, 4)
    metrics.drafted(1.0, 3.0, 1)
    metrics.steps.append(StepRecord(3.0, 3.0, 3, 2, 3, Schedule.ASYNC))
    assert lines(metrics) == [
        "│ 1.5 tokens/s · 1.5 mean · 4 tokens · 67% accepted",
        "│ target ██████████░░░░░░░░░░  50%  draft ████████████████████ 100%",
        "│ async · 5 candidates ahead",
    ]
    metrics.steps.append(StepRecord(4.0, 4.0, 3, 1, 2, Schedule.ASYNC, Origin.LOOKUP))
    metrics.prepared(1.0, 2.0, 3, 3)
    assert lines(metrics)[2] == "│ async · 5 candidates ahead · 3 outcomes prepared"
    for hit in (True, False, True):
        metrics.resolved(0, hit)
    found = lines(metrics)
    assert found[0] == "│ 2.0 tokens/s · 1.7 mean · 6 tokens · 50% accepted · 17% by lookup"
    assert found[2] == "│ async · 5 candidates ahead · 3 outcomes prepared · 67% hits"


@pytest.mark.parametrize(
    ("text", "rows"), [("", [""]), ("abc", ["abc"]), ("x漢漢漢漢漢", ["x漢漢漢漢", "漢"]), ("a\tb", ["a       b"])]
)
def test_the_rows_of_a_line_on_ten_columns(text: str, rows: list[str]) -> None:
    assert [row.plain for row in wrapped(Text(text), 10)] == rows
