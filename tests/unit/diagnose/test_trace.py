"""The file of --trace: readable whenever it is looked at, and however it ends."""

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
from duo.engine.metrics import Event, Metrics, StepRecord
from duo.errors import TraceError
from duo.spec.schedule import Schedule
from tests.fakes import Eager, FakeContext, next_token
from tests.unit.engine.helpers import make_ending, make_generation, run

ABOUT = {"duo": "1.2.3", "target": "größe.gguf", "draft": None}
LANE = '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "target"}}'
SPAN = '{"ph": "X", "name": "decode", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2e6, "args": {"tokens": 9}}'


def fill(metrics: Metrics, start: float, n_steps: int = 1) -> None:
    """`n_steps` steps of 10 ms, with all that can happen in one."""
    for i in range(n_steps):
        at = start + 0.01 * i
        metrics.waited(at, at + 0.001)
        metrics.decoded(at + 0.001, at + 0.008, 3)
        metrics.drafted(at, at + 0.004, 1)
        metrics.drafted(at + 0.004, at + 0.006, 1, "remote draft")
        if metrics.details is not None:
            metrics.details += [
                Event("target", "verify", at + 0.008, at + 0.009, 2),
                Event("target", "rollback", at + 0.009, at + 0.0091, 1),
                Event("draft", "publish", at + 0.004, at + 0.0041, 1),
                Event("draft", "rollback", at, at + 0.001, 2),
                Event("queue", "candidates", at + 0.004, at + 0.004, i),
            ]
        metrics.steps.append(StepRecord(at + 0.0091, at + 0.01, 2, 1, 2, Schedule.ASYNC))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def written(path: Path) -> Path:
    metrics = Metrics()
    trace = TraceFile(path, metrics, ABOUT)
    fill(metrics, trace._start, 5)
    trace.close()
    assert trace.error is None
    return path


def events(path: Path) -> list[dict[str, Any]]:
    """What a reader finds that does not ask for the end of the list."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8").removesuffix("\n]\n") + "]")
    return found


def test_what_was_recorded_comes_back(path: Path) -> None:
    metrics = Metrics()
    trace = TraceFile(path, metrics, ABOUT)
    fill(metrics, trace._start, 3)
    trace.close()
    recording = read_trace(path)
    assert (recording.whole, recording.about) == (True, ABOUT)
    assert metrics.details is not None
    spans = [*metrics.events, *metrics.draft_events, *(event for event in metrics.details if event.lane != "queue")]
    commits = [Event("target", "commit", step.start, step.end, step.n_tokens) for step in metrics.steps]

    def rounded(event: Event, zero: float) -> tuple[Any, ...]:
        return (event.lane, event.name, round(event.start - zero, 7), round(event.end - zero, 7), event.n)

    expected = sorted(rounded(event, trace._start) for event in (*spans, *commits))
    assert sorted(rounded(event, 0.0) for event in recording.events) == expected
    assert [step[2:] for step in recording.steps] == [step[2:] for step in metrics.steps]
    assert recording.steps[0].end == pytest.approx(0.01)


def test_perfetto_gets_what_it_asks_for(written: Path) -> None:
    found = events(written)
    names = {(event["name"], event["tid"]): event["args"]["name"] for event in found if event["ph"] == "M"}
    assert names == {
        ("process_name", 0): "duo",
        ("thread_name", 1): "target",
        ("thread_name", 2): "draft",
        ("thread_name", 3): "remote draft",
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


def test_spans_that_touch_do_not_overlap(path: Path) -> None:
    metrics = Metrics()
    trace = TraceFile(path, metrics, ABOUT)
    times = [trace._start + i * 0.00012345678 for i in range(200)]
    for start, end in pairwise(times):
        metrics.decoded(start, end, 1)
    trace.close()
    spans = [event for event in events(path) if event["ph"] == "X"]
    for first, second in pairwise(spans):
        assert round(1000 * (first["ts"] + first["dur"])) == round(1000 * second["ts"])


def test_it_is_a_list_of_events(written: Path) -> None:
    assert json.loads(written.read_text(encoding="utf-8")) == events(written)


def test_the_file_is_whole_after_every_piece(path: Path) -> None:
    metrics = Metrics()
    trace = TraceFile(path, metrics, ABOUT)
    before = len(events(path))
    for _ in range(4):
        fill(metrics, trace._start)
        trace._due = 0.0
        trace.flush()
        n = len(events(path))
        assert n > before
        before = n
        assert read_trace(path).whole
    fill(metrics, trace._start)
    trace.flush()
    assert len(events(path)) == before, "not so soon again"
    trace.close()


def test_it_can_be_cut_anywhere(written: Path, path: Path) -> None:
    data = written.read_bytes()
    whole = read_trace(written)
    lines = {line.rstrip(b",") for line in data.split(b"\n")}
    first = data.index(b'"target"}}') + len(b'"target"}}')
    counts = []
    for n in range(len(data)):
        path.write_bytes(data[:n])
        if n < first:
            with pytest.raises(TraceError):
                read_trace(path)
            continue
        cut = read_trace(path)
        counts.append(len(cut.events))
        assert cut.whole == (data[:n].split(b"\n")[-1].rstrip(b",") in lines)
        assert set(cut.events) <= set(whole.events)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(whole.events))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "no lane of a target") for text in ("", "The quick brown fox", "[", "[\n]\n")),
        (LANE.replace("target", "main"), "no lane of a target"),
        *(
            (text, "line 1 is not")
            for text in ("{}", "3", "[]", "[3]", '{"traceEvents": []}', f"[{LANE}]", "[" * 100_000)
        ),
        ("The quick\nbrown fox", "line 1 is not"),
        (f"[\n{SPAN}", "line 2 is not"),
        *(
            (f"[\n{LANE},\n{SPAN.replace('1.5', bad)},\n{SPAN}", "line 3 is not")
            for bad in ("-1", "NaN", "1e999", '"x"', "null", "[]")
        ),
        *(
            (f"[\n{LANE},\n{SPAN.replace(good, bad)},\n{SPAN}", "line 3 is not")
            for good, bad in (
                ('"tid": 1', '"tid": 2'),
                ('"tid": 1', '"tid": [1]'),
                ('"tokens": 9', '"tokens": Infinity'),
                ('"tokens": 9', '"schedule": "never"'),
                ('"tokens": 9', '"more": ' + "[" * 100_000),
                ('"decode"', r'"\u001b[2J"'),
            )
        ),
    ],
)
def test_what_is_no_trace_is_refused(path: Path, text: str, said: str) -> None:
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(TraceError, match=f"^{path}: "):
            read_trace(path)
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    with pytest.raises(TraceError):
        read_trace(tmp_path / "bytes")


def test_a_name_that_is_no_text(path: Path) -> None:
    TraceFile(path, Metrics(), {"target": "\udcff.gguf"}).close()
    assert read_trace(path).about == {"target": "?.gguf"}


def test_a_pipe_gets_it_in_one_go(tmp_path: Path) -> None:
    pipe, copy = tmp_path / "pipe", tmp_path / "copy"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()))
    reader.start()
    metrics = Metrics()
    trace = TraceFile(pipe, metrics, ABOUT)
    for _ in range(3):
        fill(metrics, trace._start)
        trace._due = 0.0
        trace.flush()
    trace.close()
    reader.join()
    recording = read_trace(copy)
    assert (recording.whole, len(recording.steps)) == (True, 3)


def test_a_full_disk_is_told_at_the_end() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    metrics = Metrics()
    trace = TraceFile(full, metrics, ABOUT)
    fill(metrics, trace._start)
    trace.flush()
    trace.close()
    assert trace.error is not None


def test_nothing_more_is_kept_without_a_trace() -> None:
    metrics = Metrics()
    assert metrics.detail("target", "verify", 0.0, 2) > 0
    metrics.pending(3)
    assert (metrics.details, metrics.n_pending) == (None, 3)


def test_a_run_tells_all_that_happened() -> None:
    draft = FakeContext(lambda prefix: next_token(prefix, salt=int(len(prefix) % 5 == 0)))
    generation = make_generation(FakeContext(), draft, make_ending(30), Eager(4, 6, Schedule.SYNC))
    generation.metrics.details = []
    run(generation)
    metrics = generation.metrics
    kinds = {(event.lane, event.name) for event in metrics.details or ()}
    assert kinds >= {
        ("target", "verify"),
        ("target", "rollback"),
        ("draft", "publish"),
        ("draft", "rollback"),
        ("queue", "candidates"),
    }
    counts = Counter(event.name for event in metrics.details or ())
    assert counts["verify"] == len(metrics.steps)
    # The number of pending candidates rises by one with each guess, and falls with each step that verified some.
    numbers = [event.n for event in metrics.details or () if event.name == "candidates"]
    changes = [after - before for before, after in pairwise([0, *numbers])]
    assert 0 not in changes
    assert changes.count(1) == counts["publish"]
    assert sum(change < 0 for change in changes) == sum(step.n_candidates > 0 for step in metrics.steps)
    assert len(changes) == counts["candidates"] == sum(change == 1 or change < 0 for change in changes)
    for step in metrics.steps:
        assert step.start <= step.end
