"""The overhead of --trace, with the demo pair and with its target alone; one thread per model."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.contestants import Setup
from duo.bench.contestant import Contestant, Job, Run
from duo.bench.modes import InProcess
from duo.config import DraftConfig, GenerationConfig, StopConfig
from duo.diagnose.trace import TraceFile
from duo.engine.engine import Engine
from duo.engine.metrics import Metrics
from duo.engine.slot import Drafts
from duo.loading import load

_N_CTX = 1024
# Fixed schedules: a policy's choice differs from text to text.
MODES = ("plain", "async")


def contestants(setup: Setup) -> list[Contestant]:
    """Each of MODES in one process, with and without a trace."""
    loading = load(setup.target, setup.draft, n_ctx=_N_CTX, n_threads=1, draft_n_threads=1, profile=False)
    engine = setup.stack.enter_context(loading)
    engine.call(lambda slot: slot.reserve(0, _N_CTX))
    slot = engine.slot
    concurrent = Drafts(slot.new_draft(slot.new_policy(DraftConfig(4, 8, "async"))))
    found = []
    for mode, drafts in zip(MODES, (Drafts(), concurrent), strict=True):
        found.append(Contestant(f"{mode}, not traced", InProcess(engine, partial(_same, drafts))))
        found.append(Contestant(f"{mode}, traced", _Traced(engine, drafts, setup.folder)))
    return found


def _same(drafts: Drafts, _: threading.Event) -> Drafts:
    return drafts


@dataclass(frozen=True, slots=True)
class _Traced:
    """Writes the trace in the calling thread, as `duo` does."""

    engine: Engine
    drafts: Drafts
    folder: Path

    def write(self, job: Job, stop: threading.Event) -> Run:  # noqa: ARG002 - a Writer
        self.engine.call(lambda slot: slot.forget())
        metrics = Metrics()
        trace = TraceFile(self.folder / "trace.json", metrics, {})
        config = GenerationConfig(stop=StopConfig(job.n_tokens, (), True))
        pieces: list[bytes] = []
        prompt = self.engine.tokenize(job.prompt)
        with self.engine.start(prompt, config, drafts=self.drafts, metrics=metrics) as stream:
            for step in stream:
                pieces.extend(step.pieces)
                trace.flush()
        trace.close()
        return Run.of(b"".join(pieces).decode("utf-8", "replace"), asdict(metrics.statistics()), metrics)
