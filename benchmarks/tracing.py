"""Measures what --trace costs: the demo pair, one core each, and its target alone, with and without it.

python -m benchmarks.tracing [-r N] [-n N] [--json FILE]; README.md has the protocol.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.report import circumstances
from duo.bench.formats import spread
from duo.bench.statistics import speed_up
from duo.config import DraftConfig, GenerationConfig, StopConfig
from duo.diagnose.trace import TraceFile
from duo.engine.engine import Engine
from duo.engine.metrics import Metrics
from duo.engine.slot import Drafts, Slot
from duo.loading import load
from duo.models.demo import demo_pair

LEAST = 0.99
N_CTX = 1024
# Always the same schedule: what a policy finds out differs from text to text.
WAYS = {"the target alone": "off", "both models": "async"}


def main() -> None:
    options = parser("tracing", (__doc__ or "").partition("\n")[0], n_tokens=64).parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    document: dict[str, object] = {**circumstances(options.peers), "load_before": quiet_enough()}
    target, draft = demo_pair()
    with (
        load(target, draft, n_ctx=N_CTX, n_threads=1, draft_n_threads=1, profile=False) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        engine.call(lambda slot: slot.reserve(0, N_CTX))
        prompts = [engine.tokenize(file.read_text(encoding="utf-8")) for file in files]
        for way, schedule in WAYS.items():
            drafts = drafts_for(engine.slot, schedule)
            ratios = measure(engine, drafts, prompts * options.repetitions, options.n_tokens, Path(folder) / "trace")
            found = speed_up(ratios)
            assert found is not None
            verdict = "pass" if found.middle >= LEAST else "MISSED"
            print(f"{way}: traced over not traced {spread(found, 4)}  at least {LEAST} {verdict}", flush=True)
            document[way] = {"ratio": found.middle, "low": found.low, "high": found.high, "ratios": ratios}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def drafts_for(slot: Slot, schedule: str) -> Drafts:
    """What drafts in this schedule."""
    if schedule == "off":
        return Drafts()
    return Drafts(slot.new_draft(slot.new_policy(DraftConfig(4, 8, schedule))))


def measure(engine: Engine, drafts: Drafts, prompts: Sequence[list[int]], n_tokens: int, file: Path) -> list[float]:
    """For each prompt the rate of its text traced over that of the same one not traced; each is first in turn."""
    ratios = []
    for i, prompt in enumerate(prompts):
        rates = {}
        for traced in (True, False) if i % 2 else (False, True):
            engine.call(lambda slot: slot.forget())
            rates[traced] = write(engine, drafts, prompt, n_tokens, file if traced else None)
        ratios.append(rates[True] / rates[False])
        print(f"\r{i + 1}/{len(prompts)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return ratios


def write(engine: Engine, drafts: Drafts, prompt: list[int], n_tokens: int, file: Path | None) -> float:
    """Tokens/s of one text; the main thread writes the trace, as in `duo`."""
    metrics = Metrics()
    trace = None if file is None else TraceFile(file, metrics, {})
    config = GenerationConfig(stop=StopConfig(n_tokens, (), True))
    with engine.start(prompt, config, drafts=drafts, metrics=metrics) as stream:
        for _ in stream:
            if trace is not None:
                trace.flush()
    if trace is not None:
        trace.close()
    rate = metrics.statistics().tokens_per_s
    assert rate is not None
    return rate


if __name__ == "__main__":
    main()
