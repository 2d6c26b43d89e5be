"""Engine overhead: memory over many loads, and Python's processor time per step with decodes that take no time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import psutil

import duo
from benchmarks.contestants import Setup
from benchmarks.runner import Outcome, Scenario, note, verdict
from benchmarks.virtual import generate
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import LookupProposer
from duo.engine.recorder import Recorder
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule, TargetAlone
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.sampling import Greedy
from duo.speculation.types import Logits
from duo.speculation.verify import Matching

_N_VOCAB = 127  # a prime: see _token
_REPORTED = (1, 10, 20, 50, 100, 200)
_REPETITIONS = 5
_N_MAX, _N_AHEAD = 4, 8  # candidates
_MOST_US = 30.0  # of a lookup that finds nothing


class EngineCost(Scenario):
    """-r is the number of loads, -n the number of tokens per schedule."""

    def run(self, setup: Setup) -> Outcome:
        memory = {}
        for i in range(1, setup.n_rounds + 1):
            with duo.load(setup.target, setup.draft, profile=False) as engine:
                engine.generate("Once upon a time", max_tokens=16)
            if i in _REPORTED or i == setup.n_rounds:
                memory[i] = psutil.Process().memory_info().rss / 1e6
                note(f"{i} loads: {memory[i]:.1f} MB")
        times = {s.value: median(_step_us(s, setup.n_tokens) for _ in range(_REPETITIONS)) for s in Schedule}
        in_vain = median(_step_us(Schedule.OFF, setup.n_tokens, looks_up=True) for _ in range(_REPETITIONS))
        times["off, with a lookup that finds nothing"] = in_vain
        lines = [f"- {n} loads: {size:.1f} MB resident" for n, size in memory.items()]
        lines += [f"- {schedule}: {us:.1f} µs of processor time per step" for schedule, us in times.items()]
        more = in_vain - times[Schedule.OFF.value]
        bar = verdict("a lookup that finds nothing, µs per step", more, most=_MOST_US)
        return Outcome(lines, {"memory_mb": memory, "step_us": times}, [bar])


class Instant:
    """A context whose decodes take no time. Every sixth token of a draft is wrong."""

    n_ctx: int = 1_000_000
    n_batch: int = 512
    n_vocab: int = _N_VOCAB
    n_rollback: int | None = None
    n_branches = 0
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
            rows[row, (_token(position) + (self._is_draft and position % 6 == 0)) % _N_VOCAB] = 5.0
        return rows

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        raise NotImplementedError

    def rollback(self, n_past: int) -> None:
        self.n_past = n_past

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...
    def branch(self, sequence: int, n_past: int) -> None: ...
    def adopt(self, sequence: int) -> None: ...
    def drop(self, sequence: int) -> None: ...
    def cancel(self) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


def _token(position: int) -> int:
    """Of a text in which no two tokens follow each other twice before its 16,000th, so that nothing is looked up."""
    lap, place = divmod(position, _N_VOCAB)
    return place * (lap + 1) % _N_VOCAB


def _step_us(schedule: Schedule, n_tokens: int, *, looks_up: bool = False) -> float:
    """Microseconds of processor time per step; `looks_up`: in vain."""
    greedy, metrics = Greedy(), Recorder()
    prompt = [_token(position) for position in range(3)]
    controller, draft = Controller(_N_MAX if looks_up else 0), None
    if schedule is not Schedule.OFF:
        estimates = DraftEstimates(controller.target, _N_MAX, _N_AHEAD, (schedule,))
        draft = LocalDraft(Cache(Instant(is_draft=True)), estimates)
    others = (LookupProposer(PromptLookup(), _N_MAX),) if looks_up else ()
    began = time.process_time()
    planning = controller if draft or looks_up else TargetAlone()
    generate(Instant(), draft, planning, prompt, n_tokens, metrics, greedy, Matching(greedy), others)
    return 1e6 * (time.process_time() - began) / len(metrics.steps)
