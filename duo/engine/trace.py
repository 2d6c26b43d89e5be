"""The trace of a run: what both models did when, as Chrome trace JSON, which Perfetto opens."""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duo.engine.metrics import Event, Metrics, StepRecord
from duo.errors import TraceError
from duo.spec.schedule import Schedule

LANES = {"target": 1, "draft": 2, "draft elsewhere": 3}
_EVERY_S = 0.5  # between two writes
_RATE_STEPS = 16
_END = "\n]}\n"
_BETWEEN = re.compile(r"[\s,]*")


class TraceFile:
    """Writes what `metrics` records to a file, a piece at a time: it is there even if the process is killed.

    Each piece begins where the end of the list stood, so that the file is whole after each. The thread that calls
    flush() makes the text; the two that compute only add to lists.
    """

    def __init__(self, path: Path, metrics: Metrics, about: dict[str, Any]) -> None:
        """Begin a file at `path` with `about`, in JSON's types, at its head. Raises OSError."""
        self._metrics = metrics
        self._file = path.open("wb")
        self.error: OSError | None = None
        self._length = 0  # without the end
        self._start = time.perf_counter()
        self._due = 0.0
        self._n_seen = [0, 0, 0, 0]
        self._recent: deque[StepRecord] = deque(maxlen=_RATE_STEPS)
        metrics.details = []
        self._named = {"target"}
        head = json.dumps({"otherData": about, "displayTimeUnit": "ms"})[:-1] + ', "traceEvents": [\n'
        self._put(head + _name("process_name", 0, "duo") + ",\n" + _name("thread_name", LANES["target"], "target"))

    def flush(self) -> None:
        """Write what is new, if the last time was a while ago."""
        if time.perf_counter() >= self._due:
            self._put("".join(self._fresh()))
            self._due = time.perf_counter() + _EVERY_S

    def close(self) -> None:
        """Write the rest. What could not be written, now or before, is told in `error`."""
        self._put("".join(self._fresh()), last=True)
        with suppress(OSError):
            self._file.close()

    def _put(self, text: str, *, last: bool = False) -> None:
        if self.error is not None:
            return
        data = text.encode()
        try:
            if seekable := self._file.seekable():
                self._file.seek(self._length)
            self._file.write(data + (_END.encode() if seekable or last else b""))
            self._file.flush()
        except OSError as error:  # a full disk ends the trace, not the run
            self.error = error
        self._length += len(data)

    def _fresh(self) -> Iterator[str]:
        """What was recorded since the last time. The lists grow while they are read, at their ends."""
        metrics = self._metrics
        sources: tuple[Sequence[Event | StepRecord], ...] = (
            metrics.events,
            metrics.draft_events,
            metrics.details or [],
            metrics.steps,
        )
        for i, source in enumerate(sources):
            seen, self._n_seen[i] = self._n_seen[i], len(source)
            for record in source[seen : self._n_seen[i]]:
                if isinstance(record, StepRecord):
                    yield from self._step(record)
                elif record.lane in LANES:
                    if record.lane not in self._named:
                        self._named.add(record.lane)
                        yield ",\n" + _name("thread_name", LANES[record.lane], record.lane)
                    yield self._span(record.lane, record.name, record.start, record.end, f'"tokens": {record.n}')
                else:
                    yield self._counter(record.name, record.end, record.n)

    def _step(self, step: StepRecord) -> Iterator[str]:
        args = (
            f'"tokens": {step.n_tokens}, "candidates": {step.n_candidates}, "accepted": {step.n_accepted}, '
            f'"schedule": "{step.schedule.value}"'
        )
        yield self._span("target", "commit", step.start, step.end, args)
        if self._recent and step.end > self._recent[0].end:
            n_tokens = sum(earlier.n_tokens for earlier in self._recent) - self._recent[0].n_tokens + step.n_tokens
            yield self._counter("tokens per second", step.end, n_tokens / (step.end - self._recent[0].end))
        self._recent.append(step)

    def _span(self, lane: str, name: str, start: float, end: float, args: str) -> str:
        # Both ends are rounded, not the duration: spans that touch must not overlap.
        first, last = self._ns(start), self._ns(end)
        return (
            f',\n{{"ph": "X", "name": "{name}", "pid": 1, "tid": {LANES[lane]}, "ts": {first / 1000:.3f}, '
            f'"dur": {(last - first) / 1000:.3f}, "args": {{{args}}}}}'
        )

    def _counter(self, name: str, time_s: float, value: float) -> str:
        return (
            f',\n{{"ph": "C", "name": "{name}", "pid": 1, "tid": 0, "ts": {self._ns(time_s) / 1000:.3f}, '
            f'"args": {{"value": {value:.6g}}}}}'
        )

    def _ns(self, time_s: float) -> int:
        return max(0, round((time_s - self._start) * 1e9))


def _name(kind: str, lane: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": 1, "tid": lane, "args": {"name": name}})


@dataclass(slots=True)
class Recording:
    """What a trace tells; times in seconds from its beginning."""

    events: list[Event] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    whole: bool = True  # whether the file had its end


def read_trace(path: Path) -> Recording:
    """Read a trace that duo wrote, also one that ends in the middle. Raises TraceError."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")  # what was cut may end in half a character
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    try:
        document, whole = json.loads(text), True
    except (ValueError, RecursionError):
        document, whole = _salvage(text), False
    found = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(found, list):
        raise TraceError(f"{path} is no trace: it has no list of traceEvents")
    recording = Recording(whole=whole)
    if isinstance(document, dict) and isinstance(document.get("otherData"), dict):
        recording.about = document["otherData"]
    names = {}
    for i, entry in enumerate(found):
        try:
            if entry["ph"] == "M" and entry["name"] == "thread_name":
                names[entry["tid"]] = entry["args"]["name"]
            elif entry["ph"] == "X":
                _take(recording, names, entry)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise TraceError(f"{path} is no trace of duo's: event {i} is not as duo writes them") from None
    if "target" not in names.values():
        raise TraceError(f"{path} is no trace of duo's: it has no lane of a target")
    recording.events.sort(key=lambda event: (event.start, -event.end))
    return recording


def _take(recording: Recording, names: dict[Any, Any], entry: dict[str, Any]) -> None:
    """Add a span. Raises KeyError, TypeError or ValueError if it is none of duo's."""
    lane, args = names[entry["tid"]], entry["args"]
    if lane not in LANES:
        raise ValueError(lane)
    name = entry["name"]
    # It is printed: nothing that a terminal could take for an order.
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(name)
    start = _seconds(entry["ts"])
    end = start + _seconds(entry["dur"])
    recording.events.append(Event(lane, name, start, end, int(args["tokens"])))
    if name == "commit":
        n_candidates, n_accepted, n_tokens = (int(args[name]) for name in ("candidates", "accepted", "tokens"))
        schedule = Schedule(args["schedule"])
        recording.steps.append(StepRecord(start, end, n_candidates, n_accepted, n_tokens, schedule))


def _seconds(microseconds: Any) -> float:
    seconds = float(microseconds) / 1e6
    if not 0 <= seconds < math.inf:
        raise ValueError(microseconds)
    return seconds


def _salvage(text: str) -> Any:
    """What is whole of a file that ends in the middle; None if it does not begin like a trace."""
    decoder = json.JSONDecoder()
    head, separator, rest = text.partition('"traceEvents": [')
    if not separator:
        return None
    document, events, position = {}, [], 0
    try:
        document = json.loads(head + '"traceEvents": []}')
        while True:
            event, position = decoder.raw_decode(rest, _BETWEEN.match(rest, position).end())  # type: ignore[union-attr]
            events.append(event)
    except (ValueError, RecursionError):
        return document | {"traceEvents": events} if isinstance(document, dict) else None
