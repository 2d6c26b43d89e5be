"""What an engine costs beside its decodes: memory over many loads, and Python per step over a model that takes no time.

python -m benchmarks.engine --loads 100
python -m benchmarks.engine --steps 6000
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

import duo
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


class Instant:
    """A context whose decodes take no time; a draft is wrong at every sixth position."""

    n_ctx: int = 1_000_000
    n_batch: int = 512
    n_vocab: int = _N_VOCAB
    n_rollback: int | None = None

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


def step_us(schedule: Schedule, n_tokens: int) -> float:
    """Microseconds of processor time per step."""
    greedy, metrics, threads = Greedy(), Metrics(), ThreadConfig(1, 1, (1,), (1, 1))
    ending = Ending(StopConfig(n_tokens), TextStream(lambda _: b"a"), lambda _: False)
    request = DraftRequest(Session([1, 2, 3], _N_VOCAB), ending, metrics, _N_VOCAB, greedy, SamplingConfig())
    draft = None
    if schedule is not Schedule.OFF:
        draft = LocalDraft(Cache(Instant(is_draft=True)), Policy(4, 8, (schedule,)), threads)
    generation = Generation(Instant(), request, Matching(greedy), threads, draft)
    began = time.process_time()
    generation.run(lambda _: None, threading.Event())
    return 1e6 * (time.process_time() - began) / len(metrics.steps)


def resident_mb() -> float:
    """Memory that the process holds now; where the system does not say, the most that it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize() / 1e6
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=0, help="load, write 16 tokens and close so many times")
    parser.add_argument("--steps", type=int, default=0, help="tokens to write with each schedule")
    options = parser.parse_args()
    for i in range(1, options.loads + 1):
        with duo.load("demo", profile=False) as engine:
            engine.generate("Once upon a time", max_tokens=16)
        if i in _REPORTED or i == options.loads:
            print(f"{i} loads: {resident_mb():.1f} MB", flush=True)
    for schedule in Schedule if options.steps else ():
        print(f"{schedule.value}: {median(step_us(schedule, options.steps) for _ in range(5)):.1f} µs per step")


if __name__ == "__main__":
    main()
