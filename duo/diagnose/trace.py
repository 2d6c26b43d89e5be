"""The trace of a run: what both models did when, as Chrome trace JSON, which Perfetto can open.

Format: "Trace Event Format", JSON Array Format, in which the closing bracket is optional.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from duo.engine.metrics import Metrics, Totals
from duo.engine.records import StepRecord

LANES = {"target": 1, "draft": 2, "remote draft": 3, "branches": 4}
_EVERY_S = 0.5  # interval of writes
_RATE_STEPS = 16  # steps over which the rate is averaged


class TraceFile:
    """Appends what `metrics` records to a file, one event per line, so that the trace survives a crash.

    The thread that calls flush() formats the events; the two computing threads only append to lists.
    """

    def __init__(self, path: Path, metrics: Metrics, about: dict[str, Any]) -> None:
        """Create the file; its first event contains `about`, which consists of JSON types. Raises OSError."""
        self._totals = Totals(metrics)
        self._file = path.open("wb")
        self.error: OSError | None = None
        self._start = time.perf_counter()
        self._due = 0.0
        self._recent: deque[StepRecord] = deque(maxlen=_RATE_STEPS)
        self._named = {"target"}
        metrics.details = []
        about = json.loads(json.dumps(about, ensure_ascii=False).encode(errors="replace"))  # may not be valid UTF-8
        first = _event("M", "process_name", 0, args={"name": "duo", "about": about}).removeprefix(b",")
        self._put(b"[" + first + _lane_name("target"))

    def flush(self) -> None:
        """Write what is new, at most every half second."""
        if time.perf_counter() >= self._due:
            self._put(b"".join(self._fresh()))
            self._due = time.perf_counter() + _EVERY_S

    def close(self) -> None:
        """Write the rest and close the file. `error` is the first exception of any write."""
        self._put(b"".join(self._fresh()) + b"\n]\n")
        with suppress(OSError):
            self._file.close()

    def _put(self, data: bytes) -> None:
        if self.error is None:
            try:
                self._file.write(data)
                self._file.flush()
            except OSError as error:  # a full disk ends the trace, not the run
                self.error = error

    def _fresh(self) -> Iterator[bytes]:
        """What was recorded since the last call."""
        for record in self._totals.update():
            if isinstance(record, StepRecord):
                yield from self._step(record)
            elif record.lane in LANES:
                yield from self._named_lane(record.lane)
                yield self._span(record.lane, record.name, record.start, record.end, tokens=record.n)
            else:
                yield self._counter(record.name, record.end, record.n)

    def _named_lane(self, lane: str) -> Iterator[bytes]:
        """The name of a lane, before its first event."""
        if lane not in self._named:
            self._named.add(lane)
            yield _lane_name(lane)

    def _step(self, step: StepRecord) -> Iterator[bytes]:
        yield self._span(
            "target", "commit", step.start, step.end, tokens=step.n_tokens, candidates=step.n_candidates,
            accepted=step.n_accepted, schedule=step.schedule, source=step.source,
        )  # fmt: skip
        if self._recent and step.end > self._recent[0].end:
            n_tokens = sum(earlier.n_tokens for earlier in self._recent) - self._recent[0].n_tokens + step.n_tokens
            yield self._counter("tokens per second", step.end, n_tokens / (step.end - self._recent[0].end))
        self._recent.append(step)

    def _span(self, lane: str, name: str, start: float, end: float, **args: Any) -> bytes:
        # Both ends are rounded, not the duration, so that adjacent spans do not overlap.
        first, last = self._ns(start), self._ns(end)
        return _event("X", name, LANES[lane], ts=first / 1000, dur=(last - first) / 1000, args=args)

    def _counter(self, name: str, time_s: float, value: float) -> bytes:
        return _event("C", name, 0, ts=self._ns(time_s) / 1000, args={"value": value})

    def _ns(self, time_s: float) -> int:
        return max(0, round((time_s - self._start) * 1e9))


def _lane_name(lane: str) -> bytes:
    return _event("M", "thread_name", LANES[lane], args={"name": lane})


def _event(phase: str, name: str, lane: int, **more: Any) -> bytes:
    return b",\n" + msgspec.json.encode({"ph": phase, "name": name, "pid": 1, "tid": lane, **more})
