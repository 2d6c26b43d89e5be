"""The file of --trace: readable while it is written, and after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from duo.cli.terminal.trace import LANES, TraceFile
from duo.engine.recorder import Recorder
from duo.engine.statistics import Event, StepRecord
from duo.speculation.modes import Schedule

ABOUT = {"duo": "1.2.3", "target": "größe.gguf", "draft": None}
START = 100.0


class Trace:
    """A trace that begins at START, on a clock that is set."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        self.metrics = Recorder()
        monkeypatch.setattr("duo.cli.terminal.trace.time", self)
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
    for _ in range(2):
        trace.fill()
    trace.file.__exit__()
    found = events(path)
    assert trace.file.error is None
    assert json.loads(path.read_text(encoding="utf-8")) == found
    assert {event["pid"] for event in found} == {1}
    head, *lanes = (event["args"] for event in found if event["ph"] == "M")
    assert (head, [lane["name"] for lane in lanes]) == ({"name": "duo", "about": ABOUT}, list(LANES))
    names = {number: lane for lane, number in LANES.items()}
    spans = [(names[event["tid"]], event["name"], event["ts"], event["dur"]) for event in found if event["ph"] == "X"]
    assert [span for span in spans if span[2] >= 10_000] == [  # of the second step, in microseconds
        ("target", "wait", 10_000, 1000), ("target", "decode", 11_000, 7000), ("draft", "draft", 10_000, 4000),
        ("remote draft", "draft", 14_000, 2000), ("branches", "branch", 10_000, 4000),
        ("target", "commit", 19_100, 900), ("target", "verify", 18_000, 1000), ("draft", "rollback", 10_000, 1000),
        ("branches", "miss", 19_500, 0),
    ]  # fmt: skip
    tokens = {event["name"]: event["args"]["tokens"] for event in found if event["ph"] == "X"}
    assert tokens == {"wait": 0, "prompt": 3, "decode": 3, "draft": 1, "branch": 3, "commit": 2, "verify": 2,
                      "rollback": 2, "hit": 0, "miss": 1}  # fmt: skip
    step = {"tokens": 2, "candidates": 2, "accepted": 1, "schedule": "async", "source": "draft"}
    assert [event["args"] for event in found if event["name"] == "commit"] == [step] * 2
    values = {event["name"]: event["args"]["value"] for event in found if event["ph"] == "C"}
    assert values == {"candidates": 1, "tokens per second": pytest.approx(200)}


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
    TraceFile(path, Recorder(), {"target": "\udcff.gguf"}).__exit__()
    assert events(path)[0]["args"]["about"] == {"target": "?.gguf"}
