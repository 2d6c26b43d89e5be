"""The trace of a run: what both models did when, in Chrome's JSON Array Format, which Perfetto can open."""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from duo.engine.recorder import Recorder, Totals
from duo.engine.statistics import StepRecord

LANES = {"target": 1, "draft": 2, "remote draft": 3, "branches": 4}
_EVERY_S = 0.5  # interval of writes
_RATE_STEPS = 16  # steps over which the rate is averaged


class TraceFile:
    """Appends what `metrics` records, an event per line. The first exception of a write ends the trace: see `error`."""

    def __init__(self, path: Path, metrics: Recorder, about: dict[str, Any]) -> None:
        """Create the file; its first event contains `about`, which consists of JSON types. Raises OSError."""
        self._totals = Totals(metrics)
        self._file = path.open("wb")
        self.error: OSError | None = None
        self._start = time.perf_counter()
        self._due = 0.0
        self._recent: deque[StepRecord] = deque(maxlen=_RATE_STEPS)
        metrics.details = []
        about = json.loads(json.dumps(about, ensure_ascii=False).encode(errors="replace"))  # may not be valid UTF-8
        first = _event("M", "process_name", 0, args={"name": "duo", "about": about}).removeprefix(b",")
        named = (_event("M", "thread_name", number, args={"name": lane}) for lane, number in LANES.items())
        self._put(b"[" + first + b"".join(named))

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, *_: object) -> None:
        """Write the rest and close the file."""
        self._put(b"".join(self._fresh()) + b"\n]\n")
        with suppress(OSError):
            self._file.close()

    def refresh(self) -> None:
        """Write what is new, at most every half second."""
        if time.perf_counter() >= self._due:
            self._put(b"".join(self._fresh()))
            self._due = time.perf_counter() + _EVERY_S

    def _put(self, data: bytes) -> None:
        if self.error is None:
            try:
                self._file.write(data)
                self._file.flush()
            except OSError as error:
                self.error = error

    def _fresh(self) -> Iterator[bytes]:
        """What was recorded since the last call."""
        for record in self._totals.update():
            if isinstance(record, StepRecord):
                yield from self._step(record)
            elif record.lane in LANES:
                yield self._span(record.lane, record.name, record.start, record.end, tokens=record.n)
            else:
                yield self._counter(record.name, record.end, record.n)

    def _step(self, step: StepRecord) -> Iterator[bytes]:
        yield self._span(
            "target", "commit", step.start, step.end, tokens=step.n_tokens, candidates=step.n_candidates,
            accepted=step.n_accepted, schedule=step.schedule, source=step.source,
        )  # fmt: skip
        self._recent.append(step)
        first, *others = self._recent
        if step.end > first.end:
            n_tokens = sum(each.n_tokens for each in others)
            yield self._counter("tokens per second", step.end, n_tokens / (step.end - first.end))

    def _span(self, lane: str, name: str, start: float, end: float, **args: Any) -> bytes:
        # Both ends are rounded, not the duration, so that adjacent spans do not overlap.
        first, last = self._us(start), self._us(end)
        return _event("X", name, LANES[lane], ts=first, dur=round(last - first, 3), args=args)

    def _counter(self, name: str, time_s: float, value: float) -> bytes:
        return _event("C", name, 0, ts=self._us(time_s), args={"value": value})

    def _us(self, time_s: float) -> float:
        """Microseconds since the start, to the nanosecond."""
        return max(0.0, round((time_s - self._start) * 1e6, 3))


def _event(phase: str, name: str, lane: int, **more: Any) -> bytes:
    return b",\n" + msgspec.json.encode({"ph": phase, "name": name, "pid": 1, "tid": lane, **more})
