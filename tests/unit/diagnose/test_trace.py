"""The file of --trace: readable while it is written, and after a kill."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from duo.diagnose.trace import TraceFile, read_trace
from duo.engine.metrics import Event, Metrics, Resolution, StepRecord
from duo.errors import TraceError
from duo.spec.schedule import Schedule
from tests.fakes import Eager, FakeContext, next_token
from tests.unit.engine.helpers import make_ending, make_generation, run

ABOUT = {"duo": "1.2.3", "target": "größe.gguf", "draft": None}
LANE = '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "target"}}'
SPAN = '{"ph": "X", "name": "decode", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2e6, "args": {"tokens": 9}}'
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
                Event("queue", "candidates", at + 0.004, at + 0.004, i),
            ]
            metrics.prepared(at, at + 0.004, 3, 2)
            metrics.resolutions.append(Resolution(at + 0.0095, i, hit=i % 2 == 0))
            metrics.steps.append(StepRecord(at + 0.0091, at + 0.01, 2, 1, 2, Schedule.ASYNC))

    def flush(self, after_s: float = 0.0) -> None:
        self.now += after_s
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("duo.diagnose.trace.time", self)
            self.file.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def written(path: Path) -> Path:
    trace = Trace(path)
    trace.fill(5)
    trace.file.close()
    assert trace.file.error is None
    return path


def events(path: Path) -> list[dict[str, Any]]:
    """What a reader finds that does not need the end of the list."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8").removesuffix("\n]\n") + "]")
    return found


# Written


def test_a_recorded_run_is_read_back(path: Path) -> None:
    trace = Trace(path)
    trace.fill(3)
    trace.file.close()
    recording, metrics = read_trace(path), trace.metrics
    assert (recording.whole, recording.about) == (True, ABOUT)
    spans = [*metrics.events, *metrics.draft_events]
    spans += [event for event in metrics.details or () if event.lane != "queue"]
    spans += [Event("branches", "branch", record.start, record.end, 3) for record in metrics.branch_records]
    spans += [Event("target", "commit", step.start, step.end, step.n_tokens) for step in metrics.steps]

    def rounded(event: Event, zero: float) -> tuple[Any, ...]:
        return (event.lane, event.name, round(event.start - zero, 7), round(event.end - zero, 7), event.n)

    assert sorted(rounded(event, 0.0) for event in recording.events) == sorted(rounded(span, START) for span in spans)
    assert [step[2:] for step in recording.steps] == [step[2:] for step in metrics.steps]
    assert recording.steps[0].end == pytest.approx(0.01)
    assert [record[2:] for record in recording.branches] == [(3, 2)] * 3
    assert recording.branches[1][:2] == pytest.approx((0.01, 0.014))
    assert [each[1:] for each in recording.resolutions] == [(0, True), (1, False), (2, True)]
    assert recording.resolutions[0].time == pytest.approx(0.0095)


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
    assert {event["ph"] for event in found} == {"M", "X", "C", "i"}
    for event in found:
        assert event["pid"] == 1
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "i" or (event["name"] in ("hit", "miss") and event["s"] == "t")
        assert event["ph"] != "C" or isinstance(event["args"]["value"], int | float)
    assert {event["name"] for event in found if event["ph"] == "C"} == {"candidates", "tokens per second"}
    (rate, *_) = [event["args"]["value"] for event in found if event["name"] == "tokens per second"]
    assert rate == pytest.approx(200)


def test_adjacent_spans_do_not_overlap_after_rounding(path: Path) -> None:
    trace = Trace(path)
    for start, end in pairwise(START + i * 0.00012345678 for i in range(200)):
        trace.metrics.decoded(start, end, 1)
    trace.file.close()
    spans = [event for event in events(path) if event["ph"] == "X"]
    for first, second in pairwise(spans):
        assert round(1000 * (first["ts"] + first["dur"])) == round(1000 * second["ts"])


def test_the_file_is_complete_after_every_flush(path: Path) -> None:
    trace = Trace(path)
    counts = [len(events(path))]
    for _ in range(3):
        trace.fill()
        trace.flush(after_s=1.0)
        counts.append(len(events(path)))
        assert read_trace(path).whole
    assert counts == sorted(set(counts))
    trace.fill()
    trace.flush()
    assert len(events(path)) == counts[-1], "at most twice a second"
    trace.file.close()


def test_a_named_pipe_can_be_written(tmp_path: Path) -> None:
    pipe, copy = tmp_path / "pipe", tmp_path / "copy"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()))
    reader.start()
    trace = Trace(pipe)
    for _ in range(3):
        trace.fill()
        trace.flush(after_s=1.0)
    trace.file.close()
    reader.join()
    recording = read_trace(copy)
    assert (recording.whole, len(recording.steps)) == (True, 3)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_reported_at_the_end() -> None:
    trace = Trace(Path("/dev/full"))
    trace.fill()
    trace.flush()
    trace.file.close()
    assert trace.file.error is not None


def test_a_trace_without_branches_has_no_lane_of_them(path: Path) -> None:
    trace = Trace(path)
    trace.metrics.decoded(START, START + 1, 1)
    trace.file.close()
    assert b"branches" not in path.read_bytes()
    assert (read_trace(path).branches, read_trace(path).resolutions) == ([], [])


def test_a_name_that_is_not_utf8(path: Path) -> None:
    Trace(path, {"target": "\udcff.gguf"}).file.close()
    assert read_trace(path).about == {"target": "?.gguf"}


# Read


def test_a_truncated_file_has_all_events_before_the_cut(written: Path, path: Path) -> None:
    """At each end of a line and around it, and at some places within lines."""
    data = written.read_bytes()
    whole = set(read_trace(written).events)
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    cuts = {n for end in ends for n in range(end - 2, end + 3)} | set(range(0, len(data), 97))
    lines = {line.rstrip(b",") for line in data.split(b"\n")}
    first = data.index(b'"target"}}') + len(b'"target"}}')
    counts = []
    for n in sorted(cut for cut in cuts if 0 <= cut < len(data)):
        path.write_bytes(data[:n])
        if n < first:
            with pytest.raises(TraceError):
                read_trace(path)
            continue
        cut = read_trace(path)
        counts.append(len(cut.events))
        assert cut.whole == (data[:n].split(b"\n")[-1].rstrip(b",") in lines)
        assert set(cut.events) <= whole
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(whole))


def changed(old: str, new: str) -> str:
    """A trace whose third line is changed."""
    assert old in SPAN
    return f"[\n{LANE},\n{SPAN.replace(old, new)},\n{SPAN}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "target") for text in ("", "The quick brown fox", "[", "[\n]\n", LANE.replace("target", "main"))),
        *((text, "line 1 ") for text in ("{}", "3", "[]", "[3]", '{"traceEvents": []}', f"[{LANE}]", "[" * 100_000)),
        ("The quick\nbrown fox", "line 1 "),
        (f"[\n{SPAN}", "line 2 "),
        *((changed("1.5", bad), "line 3 ") for bad in ("-1", "NaN", "1e999", '"x"', "null", "[]")),
        (changed('"tid": 1', '"tid": 2'), "line 3 "),
        (changed('"tid": 1', '"tid": [1]'), "line 3 "),
        (changed('"tokens": 9', '"tokens": Infinity'), "line 3 "),
        (changed('"tokens": 9', '"schedule": "never"'), "line 3 "),
        (changed('"tokens": 9', '"more": ' + "[" * 100_000), "line 3 "),
        (changed('"decode"', r'"\u001b[2J"'), "line 3 "),
        (changed('"tokens": 9', '"opened": "two"'), "line 3 "),
    ],
)
def test_a_file_that_is_no_trace_is_refused(path: Path, text: str, said: str) -> None:
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(TraceError, match=f"^{path}: "):
            read_trace(path)
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    with pytest.raises(TraceError):
        read_trace(tmp_path / "bytes")


# What a run records


def test_no_details_are_recorded_without_a_trace() -> None:
    metrics = Metrics()
    assert metrics.detail("target", "verify", 0.0, 2) > 0
    metrics.pending(3)
    assert (metrics.details, metrics.n_pending) == (None, 3)


def test_a_run_records_every_step_and_candidate() -> None:
    draft = FakeContext(lambda prefix: next_token(prefix, salt=int(len(prefix) % 5 == 0)))
    generation = make_generation(FakeContext(), draft, make_ending(30), Eager(4, 6, Schedule.SYNC))
    metrics, details = generation.metrics, list[Event]()
    metrics.details = details
    run(generation)
    lanes = {("target", "verify"), ("target", "rollback"), ("draft", "publish"), ("draft", "rollback")}
    assert {(event.lane, event.name) for event in details} >= lanes | {("queue", "candidates")}
    counts = Counter(event.name for event in details)
    assert counts["verify"] == len(metrics.steps)
    # The number of pending candidates increases with each candidate, and decreases with each step that verified some.
    numbers = [event.n for event in details if event.name == "candidates"]
    changes = [after - before for before, after in pairwise([0, *numbers])]
    assert changes.count(1) == counts["publish"]
    assert sum(change < 0 for change in changes) == sum(step.n_candidates > 0 for step in metrics.steps)
    assert len(changes) == counts["candidates"] == sum(change == 1 or change < 0 for change in changes)
    assert all(step.start <= step.end for step in metrics.steps)
