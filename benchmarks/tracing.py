"""Measures what --trace costs: the demo pair, one core each, and its target alone, with and without it.

python -m benchmarks.tracing [-r N] [-n N] [--json FILE]; README.md has the protocol.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.report import circumstances
from duo.bench.formats import spread
from duo.bench.modes import Stage
from duo.bench.statistics import speed_up
from duo.config import ContextConfig, DraftConfig, ModelConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.background import Background
from duo.engine.pair import Pair
from duo.engine.slot import Slot, Task
from duo.engine.trace import TraceFile
from duo.models.demo import demo_pair
from duo.spec.schedule import Schedule
from duo.spec.types import Step

LEAST = 0.99
N_CTX = 1024
# Always the same schedule: what a policy finds out differs from text to text.
WAYS = {"the target alone": Schedule.OFF, "both models": Schedule.ASYNC}


def main() -> None:
    options = parser("tracing", (__doc__ or "").partition("\n")[0], n_tokens=64).parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    document: dict[str, object] = {**circumstances(options.peers), "load_before": quiet_enough()}
    target, draft = (ModelConfig(path) for path in demo_pair())
    threads = ThreadConfig(target=1, target_batch=1, draft=(1,), beside=(1, 1))
    with Pair.load(target, draft) as pair, tempfile.TemporaryDirectory() as folder:
        contexts = pair.contexts(ContextConfig(N_CTX, 1, 1), ContextConfig(N_CTX + 16, 1, 1), print)
        prompts = [pair.target.tokenize(file.read_text(encoding="utf-8")) for file in files]
        for way, schedule in WAYS.items():
            stage = Stage(pair, contexts[0], contexts[1], threads)
            used = (contexts[0], contexts[1] if schedule is Schedule.ASYNC else None)
            slot = Slot(pair, used, threads, DraftConfig(4, 8), (schedule,), {}, can_be_helped=False)
            ratios = measure(stage, slot, prompts * options.repetitions, options.n_tokens, Path(folder) / "trace.json")
            found = speed_up(ratios)
            assert found is not None
            verdict = "pass" if found.middle >= LEAST else "MISSED"
            print(f"{way}: traced over not traced {spread(found, 4)}  at least {LEAST} {verdict}", flush=True)
            document[way] = {"ratio": found.middle, "low": found.low, "high": found.high, "ratios": ratios}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def measure(stage: Stage, slot: Slot, prompts: Sequence[list[int]], n_tokens: int, file: Path) -> list[float]:
    """For each prompt the rate of its text traced over that of the same one not traced; each is first in turn."""
    ratios = []
    for i, prompt in enumerate(prompts):
        rates = {}
        for traced in (True, False) if i % 2 else (False, True):
            stage.forget()
            rates[traced] = write(slot, prompt, n_tokens, file if traced else None)
        ratios.append(rates[True] / rates[False])
        print(f"\r{i + 1}/{len(prompts)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return ratios


def write(slot: Slot, prompt: list[int], n_tokens: int, file: Path | None) -> float:
    """Tokens/s of one text; the main thread writes the trace, as in `duo`."""
    task = Task(prompt, SamplingConfig(), StopConfig(n_tokens, (), True))
    trace = None if file is None else TraceFile(file, task.metrics, {})

    def work(put: Callable[[Step], None], stop: threading.Event) -> None:
        slot.write(task, put, stop)

    with Background(work, "duo-target") as running:
        for _ in running:
            if trace is not None:
                trace.flush()
    if trace is not None:
        trace.close()
    return float(task.metrics.statistics()["generation"]["tokens_per_s"])


if __name__ == "__main__":
    main()
