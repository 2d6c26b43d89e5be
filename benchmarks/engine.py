"""Engine overhead: memory over many loads, and Python's processor time per step with decodes that take no time."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

import duo
from benchmarks.contestants import Setup
from benchmarks.measure import Outcome, Scenario, note
from duo.config import SamplingConfig, StopConfig, ThreadConfig
from duo.engine.cache import Cache
from duo.engine.draft import DraftRequest
from duo.engine.generation import Generation
from duo.engine.local_draft import LocalDraft
from duo.engine.metrics import Metrics
from duo.engine.text import Ending, TextStream
from duo.spec.policy import Policy
from duo.spec.sampling import Greedy
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Logits
from duo.spec.verify import Matching

_N_VOCAB = 64
_REPORTED = (1, 10, 20, 50, 100, 200)
_REPETITIONS = 5


class EngineCost(Scenario):
    """-r is the number of loads, -n the number of tokens per schedule."""

    def run(self, setup: Setup) -> Outcome:
        memory = {}
        for i in range(1, setup.n_rounds + 1):
            with duo.load(setup.target, setup.draft, profile=False) as engine:
                engine.generate("Once upon a time", max_tokens=16)
            if i in _REPORTED or i == setup.n_rounds:
                memory[i] = resident_bytes() / 1e6
                note(f"{i} loads: {memory[i]:.1f} MB")
        times = {s.value: median(_step_us(s, setup.n_tokens) for _ in range(_REPETITIONS)) for s in Schedule}
        lines = [f"- {n} loads: {size:.1f} MB resident" for n, size in memory.items()]
        lines += [f"- {schedule}: {us:.1f} µs of processor time per step" for schedule, us in times.items()]
        return Outcome(lines, {"memory_mb": memory, "step_us": times})


class _Instant:
    """A context whose decodes take no time. Every sixth token of a draft is wrong."""

    n_ctx: int = 1_000_000
    n_batch: int = 512
    n_vocab: int = _N_VOCAB
    n_rollback: int | None = None
    was_first = False

    def __init__(self, *, is_draft: bool = False) -> None:
        self.n_past = 0
        self._is_draft = is_draft
        self._rows = np.zeros((32, _N_VOCAB), np.float32)

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        self.n_past += len(tokens)
        rows = self._rows[:n_rows]
        rows[:] = 0
        for row in range(n_rows):
            position = self.n_past - n_rows + 1 + row
            rows[row, (7 * position + (self._is_draft and position % 6 == 0)) % 61] = 5.0
        return rows

    def rollback(self, n_past: int) -> None:
        self.n_past = n_past

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...
    def cancel(self) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


def _step_us(schedule: Schedule, n_tokens: int) -> float:
    """Microseconds of processor time per step."""
    greedy, metrics, threads = Greedy(), Metrics(), ThreadConfig(1, 1, (1,), (1, 1))
    ending = Ending(StopConfig(n_tokens), TextStream(lambda _: b"a"), lambda _: False)
    request = DraftRequest(Session([1, 2, 3], _N_VOCAB), ending, metrics, _N_VOCAB, greedy, SamplingConfig())
    draft = None
    if schedule is not Schedule.OFF:
        draft = LocalDraft(Cache(_Instant(is_draft=True)), Policy(4, 8, (schedule,)), threads)
    generation = Generation(_Instant(), request, Matching(greedy), threads, draft)
    began = time.process_time()
    generation.run(lambda _: None, threading.Event())
    return 1e6 * (time.process_time() - began) / len(metrics.steps)


def resident_bytes(process: str = "self") -> float:
    """The resident size of a process; without /proc, the peak of this process."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
