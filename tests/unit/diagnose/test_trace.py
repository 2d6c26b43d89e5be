"""The file of --trace: readable while it is written, and after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duo.diagnose.trace import LANES, TraceFile
from duo.engine.metrics import Metrics
from duo.engine.statistics import Event, StepRecord
from duo.spec.schedule import Schedule

ABOUT = {"duo": "1.2.3", "target": "größe.gguf", "draft": None}
START = 100.0


class Trace:
    """A trace that begins at START, on a clock that is set."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        self.metrics = Metrics()
        monkeypatch.setattr("duo.diagnose.trace.time", self)
        self.file = TraceFile(path, self.metrics, ABOUT)

    def perf_counter(self) -> float:
        return self.now

    def fill(self) -> None:
        """A step of 10 ms, with everything that can happen in one."""
        metrics = self.metrics
        assert metrics.details is not None
        i, at = len(metrics.steps), START + 0.01 * len(metrics.steps)
        metrics.waited(at, at + 0.001)
        metrics.decoded(at + 0.001, at + 0.008, 3)
        metrics.drafted(at, at + 0.004, 1)
        metrics.drafted(at + 0.004, at + 0.006, 1, "remote draft")
        metrics.details += [
            Event("target", "verify", at + 0.008, at + 0.009, 2),
            Event("draft", "rollback", at, at + 0.001, 2),
            Event("branches", "miss" if i % 2 else "hit", at + 0.0095, at + 0.0095, i),
            Event("queue", "candidates", at + 0.004, at + 0.004, i),
        ]
        metrics.prepared(at, at + 0.004, 3, 2)
        metrics.steps.append(StepRecord(at + 0.0091, at + 0.01, 2, 1, 2, Schedule.ASYNC))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def events(path: Path) -> list[dict[str, Any]]:
    """What a reader finds that does not need the end of the list."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8").removesuffix("\n]\n") + "]")
    return found


def test_what_is_recorded_is_written_as_a_trace_of_chrome(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(path, monkeypatch)
    for _ in range(3):
        trace.fill()
    trace.file.__exit__()
    found, metrics = events(path), trace.metrics
    assert trace.file.error is None
    assert json.loads(path.read_text(encoding="utf-8")) == found
    assert found[0]["args"] == {"name": "duo", "about": ABOUT}
    named = {event["args"]["name"]: event["tid"] for event in found if event["name"] == "thread_name"}
    assert named == LANES
    spans = [*metrics.events]
    spans += [event for event in metrics.details or () if event.lane != "queue"]
    spans += [Event("target", "commit", step.start, step.end, step.n_tokens) for step in metrics.steps]

    def times(start: float, end: float) -> tuple[float, float]:
        return round(1e6 * start, 1), round(1e6 * (end - start), 1)

    assert sorted(
        (event["tid"], event["name"], round(event["ts"], 1), round(event["dur"], 1), event["args"]["tokens"])
        for event in found
        if event["ph"] == "X"
    ) == sorted((LANES[span.lane], span.name, *times(span.start - START, span.end - START), span.n) for span in spans)
    step = {"tokens": 2, "candidates": 2, "accepted": 1, "schedule": "async", "source": "draft"}
    assert [event["args"] for event in found if event["name"] == "commit"] == [step] * 3
    assert {event["pid"] for event in found} == {1}
    values = {event["name"]: event["args"]["value"] for event in found if event["ph"] == "C"}
    assert values == {"candidates": 2, "tokens per second": pytest.approx(200)}


def test_the_file_is_complete_after_every_flush(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(path, monkeypatch)
    counts = [len(events(path))]
    for _ in range(3):
        trace.fill()
        trace.now += 1.0
        trace.file.refresh()
        counts.append(len(events(path)))
    assert counts == sorted(set(counts))
    trace.fill()
    trace.file.refresh()
    assert len(events(path)) == counts[-1], "at most twice a second"
    trace.file.__exit__()


def test_a_name_that_is_not_utf8(path: Path) -> None:
    TraceFile(path, Metrics(), {"target": "\udcff.gguf"}).__exit__()
    assert events(path)[0]["args"]["about"] == {"target": "?.gguf"}
