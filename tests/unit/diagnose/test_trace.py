"""The file of --trace: readable while it is written, and after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duo.diagnose.trace import TraceFile
from duo.engine.metrics import Metrics
from duo.engine.statistics import Event, StepRecord
from duo.spec.schedule import Schedule

ABOUT = {"duo": "1.2.3", "target": "größe.gguf", "draft": None}
START = 100.0


class Trace:
    """A trace that begins at START, on a clock that is set."""

    def __init__(self, path: Path, about: dict[str, Any] = ABOUT) -> None:
        self.now = START
        self.metrics = Metrics()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("duo.diagnose.trace.time", self)
            self.file = TraceFile(path, self.metrics, about)

    def perf_counter(self) -> float:
        return self.now

    def fill(self, n_steps: int = 1) -> None:
        """`n_steps` steps of 10 ms, with everything that can happen in one."""
        metrics = self.metrics
        assert metrics.details is not None
        for i in range(n_steps):
            at = START + 0.01 * (len(metrics.steps))
            metrics.waited(at, at + 0.001)
            metrics.decoded(at + 0.001, at + 0.008, 3)
            metrics.drafted(at, at + 0.004, 1)
            metrics.drafted(at + 0.004, at + 0.006, 1, "remote draft")
            metrics.details += [
                Event("target", "verify", at + 0.008, at + 0.009, 2),
                Event("target", "rollback", at + 0.009, at + 0.0091, 1),
                Event("draft", "publish", at + 0.004, at + 0.0041, 1),
                Event("draft", "rollback", at, at + 0.001, 2),
                Event("branches", "miss" if i % 2 else "hit", at + 0.0095, at + 0.0095, i),
                Event("queue", "candidates", at + 0.004, at + 0.004, i),
            ]
            metrics.prepared(at, at + 0.004, 3, 2)
            metrics.steps.append(StepRecord(at + 0.0091, at + 0.01, 2, 1, 2, Schedule.ASYNC))

    def flush(self, after_s: float = 0.0) -> None:
        self.now += after_s
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("duo.diagnose.trace.time", self)
            self.file.refresh()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def written(path: Path) -> Path:
    trace = Trace(path)
    trace.fill(5)
    trace.file.__exit__()
    assert trace.file.error is None
    return path


def events(path: Path) -> list[dict[str, Any]]:
    """What a reader finds that does not need the end of the list."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8").removesuffix("\n]\n") + "]")
    return found


# Written


def test_what_is_recorded_is_written(path: Path) -> None:
    trace = Trace(path)
    trace.fill(3)
    trace.file.__exit__()
    found, metrics = events(path), trace.metrics
    assert found[0]["args"]["about"] == ABOUT
    lanes = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    spans = [*metrics.events, *metrics.draft_events]
    spans += [event for event in metrics.details or () if event.lane != "queue"]
    spans += [Event("target", "commit", step.start, step.end, step.n_tokens) for step in metrics.steps]

    def times(start: float, end: float) -> tuple[float, float]:
        return round(1e6 * start, 1), round(1e6 * (end - start), 1)

    assert sorted(
        (lanes[event["tid"]], event["name"], round(event["ts"], 1), round(event["dur"], 1), event["args"]["tokens"])
        for event in found
        if event["ph"] == "X"
    ) == sorted((span.lane, span.name, *times(span.start - START, span.end - START), span.n) for span in spans)
    steps = [event["args"] for event in found if event["name"] == "commit"]
    step = {"tokens": 2, "candidates": 2, "accepted": 1, "schedule": "async", "source": "draft"}
    assert steps == [step] * 3


def test_the_file_is_a_trace_of_chrome(written: Path) -> None:
    """Perfetto's requirements."""
    found = events(written)
    assert json.loads(written.read_text(encoding="utf-8")) == found
    names = {(event["name"], event["tid"]): event["args"]["name"] for event in found if event["ph"] == "M"}
    assert names == {
        ("process_name", 0): "duo",
        ("thread_name", 1): "target",
        ("thread_name", 2): "draft",
        ("thread_name", 3): "remote draft",
        ("thread_name", 4): "branches",
    }
    assert {event["ph"] for event in found} == {"M", "X", "C"}
    for event in found:
        assert event["pid"] == 1
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "C" or isinstance(event["args"]["value"], int | float)
    assert {event["name"] for event in found if event["ph"] == "C"} == {"candidates", "tokens per second"}
    (rate, *_) = [event["args"]["value"] for event in found if event["name"] == "tokens per second"]
    assert rate == pytest.approx(200)


def test_the_file_is_complete_after_every_flush(path: Path) -> None:
    trace = Trace(path)
    counts = [len(events(path))]
    for _ in range(3):
        trace.fill()
        trace.flush(after_s=1.0)
        counts.append(len(events(path)))
    assert counts == sorted(set(counts))
    trace.fill()
    trace.flush()
    assert len(events(path)) == counts[-1], "at most twice a second"
    trace.file.__exit__()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_reported_at_the_end() -> None:
    trace = Trace(Path("/dev/full"))
    trace.fill()
    trace.flush()
    trace.file.__exit__()
    assert trace.file.error is not None


def test_a_name_that_is_not_utf8(path: Path) -> None:
    Trace(path, {"target": "\udcff.gguf"}).file.__exit__()
    assert events(path)[0]["args"]["about"] == {"target": "?.gguf"}
