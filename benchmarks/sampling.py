"""Measures sampling on the demo pair: how often the draft is right, and tokens/s, by temperature and way of verifying.

python -m benchmarks.sampling [-r N] [-n N] [--json FILE]; README.md has the protocol.

Acceptance is that of one candidate after the target's own text, at every position of it, so that no policy chooses
which: coupled guesses and greedy guesses that equal the token, and for rejection sampling, and as the upper bound of
every way, the mean of the sum of min(target, draft).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import PROMPTS, parser, quiet_enough
from duo.bench.process import run_process
from duo.config import ContextConfig, ModelConfig, SamplingConfig
from duo.engine.decoder import decode_all
from duo.llama.context import Context
from duo.llama.model import Model
from duo.models.demo import demo_pair
from duo.spec.sampling import Chain, Coupled, Greedy
from duo.spec.types import Distribution

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
WAYS = ("coupled", "rejection", "greedy draft")
_VOCABULARY, _ROWS, _DECODE_S = 128_256, 5, 0.020

# The draft proposes its most likely token, and the target samples: what is usual where nothing is coupled.
_GREEDY_DRAFT = """
import sys
from duo.cli.main import main
from duo.engine import slot
from duo.spec.sampling import Greedy
choosing = slot.choosing
slot.choosing = lambda *arguments: (choosing(*arguments)[0], Greedy())
sys.argv[0] = "duo"
main()
"""


def main() -> None:
    options = parser("sampling", (__doc__ or "").partition("\n")[0], n_tokens=128).parse_args()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    quiet_enough()
    document: dict[str, Any] = {
        "cost": sampling_cost(),
        "acceptance": acceptance(files, options.n_tokens),
        "rates": rates(files, options.n_tokens, options.repetitions, options.duo),
    }
    report(document)
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def sampling_cost() -> float:
    """Seconds to sample five rows of a large vocabulary at top-k 40, each row out of the caches: a median."""
    sampler = Coupled(SamplingConfig(temp=0.8))
    dice = np.random.default_rng(1)
    batches = [(3 * dice.standard_normal((_ROWS, _VOCABULARY))).astype(np.float32) for _ in range(40)]
    times = []
    for position, rows in enumerate(batches):
        start = time.perf_counter()
        for i, row in enumerate(rows):
            sampler.sample(row, position + i)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def acceptance(files: Sequence[Path], n_tokens: int) -> dict[str, dict[str, float]]:
    """By temperature, the share of guesses that are right in each way."""
    found = {}
    config = ContextConfig(1024, 2, 2)
    with ExitStack() as stack:
        model, draft_model = (stack.enter_context(closing(Model(ModelConfig(path)))) for path in demo_pair())
        target, draft = Context(model, config), Context(draft_model, config)
        for temperature in TEMPERATURES:
            counts = dict.fromkeys((*WAYS, "bound"), 0.0)
            for seed, file in enumerate(files):
                prompt = model.tokenize(file.read_text())
                _compare(target, draft, prompt, n_tokens, SamplingConfig(temp=temperature, seed=seed), counts)
            found[f"{temperature:g}"] = {way: n / (n_tokens * len(files)) for way, n in counts.items()}
    return found


def _compare(
    target: Context, draft: Context, prompt: list[int], n_tokens: int, config: SamplingConfig, counts: dict[str, float]
) -> None:
    sampler, greedy, chain = Coupled(config), Greedy(), Chain(config)
    text = list(prompt)
    rows = []
    for context in (target, draft):
        context.rollback(0)
        rows.append(decode_all(context, text)[0].copy())
    for position in range(len(text), len(text) + n_tokens):
        token = sampler.sample(rows[0], position)
        counts["coupled"] += sampler.sample(rows[1], position) == token
        counts["greedy draft"] += greedy.sample(rows[1], position) == token
        shared = float(sampler.sample(rows[0], position) == greedy.sample(rows[1], position))
        if config.temp:
            shared = _overlap(chain.distribution(rows[0], ()), chain.distribution(rows[1], ()))
        counts["rejection"] += shared
        counts["bound"] += shared
        rows = [context.decode([token])[0].copy() for context in (target, draft)]


def _overlap(target: Distribution, draft: Distribution) -> float:
    shared = np.intersect1d(target.ids, draft.ids, assume_unique=True)
    both = [side.probabilities[side.ids.searchsorted(shared)] for side in (target, draft)]
    return float(np.minimum(*both).sum())


def rates(files: Sequence[Path], n_tokens: int, repetitions: int, duo: list[str]) -> dict[str, dict[str, float]]:
    """By temperature, tokens/s in each way: over the prompts the geometric mean of medians, interleaved."""
    target, draft = demo_pair()
    jobs = [(t, way) for t in TEMPERATURES for way in (WAYS if t else WAYS[:1])]
    found: dict[tuple[float, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder) / "duo.json"
        for repetition in range(repetitions):
            for file in files:
                for temperature, way in jobs:
                    print(
                        f"\r{repetition + 1}/{repetitions} {file.stem} {temperature} {way:<20}", end="", file=sys.stderr
                    )
                    program = [sys.executable, "-c", _GREEDY_DRAFT] if way == "greedy draft" else duo
                    verify = "rejection" if way == "rejection" else "coupled"
                    command = [
                        *program, "-m", str(target), "-md", str(draft), "-f", str(file), "-n", str(n_tokens),
                        "--ignore-eos", "--temp", str(temperature), "-s", str(repetition), "--verify", verify,
                        "--json", str(report_file),
                    ]  # fmt: skip
                    # A profile for each way: the acceptance that they learn is not the same.
                    profile = f"{folder}/{temperature}-{way}"
                    cost = run_process(command, {"DUO_CONFIG": profile})
                    if cost.status:
                        raise SystemExit(cost.stderr)
                    rate = json.loads(report_file.read_text())["generation"]["tokens_per_s"]
                    found.setdefault((temperature, way, file.stem), []).append(rate)
    print(file=sys.stderr)
    return {
        f"{temperature:g}": {
            way: statistics.geometric_mean(
                statistics.median(found[temperature, way, file.stem]) for file in files
            )
            for t, way in jobs
            if t == temperature
        }
        for temperature in TEMPERATURES
    }  # fmt: skip


def report(document: dict[str, Any]) -> None:
    """The table, and the bars."""
    accepted, rate = document["acceptance"], document["rates"]
    print(f"{'temperature':<12}" + "".join(f"{way + ' %':>16}" for way in (*WAYS, "bound")) + f"{'tokens/s':>40}")
    for t in accepted:
        shares = "".join(f"{100 * accepted[t][way]:16.1f}" for way in (*WAYS, "bound"))
        speeds = ", ".join(f"{way} {speed:.1f}" for way, speed in rate[t].items())
        print(f"{t:<12}{shares}{speeds:>40}")
    bars = [
        ("coupled over a greedy draft at 0.7", accepted["0.7"]["coupled"] / accepted["0.7"]["greedy draft"], 1.08),
        ("coupled over a greedy draft at 1.0", accepted["1"]["coupled"] / accepted["1"]["greedy draft"], 1.15),
        ("coupled over the bound at 0.7", accepted["0.7"]["coupled"] / accepted["0.7"]["bound"], 0.95),
        ("coupled over the bound at 1.0", accepted["1"]["coupled"] / accepted["1"]["bound"], 0.95),
        ("tokens/s at 0.7 over those at 0", rate["0.7"]["coupled"] / rate["0"]["coupled"], 0.9),
    ]
    for name, value, least in bars:
        print(f"{name:<40}{value:8.3f}  at least {least:g} {'pass' if value >= least else 'MISSED'}")
    share = document["cost"] / _DECODE_S
    verdict = "pass" if share <= 0.05 else "MISSED"
    print(f"{'sampling of five rows, share of 20 ms':<40}{share:8.3f}  at most 0.05 {verdict}")


if __name__ == "__main__":
    main()
