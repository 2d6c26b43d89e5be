"""Ways to run the same thing, in turns, compared with one another: medians by prompt, and what one is over another."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from duo.bench.formats import spread
from duo.bench.process import run_process
from duo.bench.statistics import speed_up

Rates = dict[str, dict[str, list[float]]]  # tokens/s by way and prompt
Bars = Mapping[str, tuple[str, str, float]]  # a way over another one, and the least that it should be


def in_turns(ways: Mapping[str, Sequence[str]], files: Sequence[Path], options: argparse.Namespace) -> Rates:
    """What `duo` says of its generation, by ways to call it; every repetition begins with another one.

    Each way has a profile of its own. Ends the process if a run fails.
    """
    rates: Rates = {way: {} for way in ways}
    names = list(ways)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "duo.json"
        common = ["-n", str(options.n_tokens), "--ignore-eos", "--json", str(report), "-f"]
        for i in range(options.repetitions):
            first = i % len(names)
            for file in files:
                for way in names[first:] + names[:first]:
                    print(f"\r{i + 1}/{options.repetitions} {file.stem} {way:<30}", end="", file=sys.stderr)
                    cost = run_process([*ways[way], *common, str(file)], {"DUO_CONFIG": f"{folder}/{way}"})
                    if cost.status:
                        raise SystemExit(cost.stderr)
                    rate = json.loads(report.read_text(encoding="utf-8"))["generation"]["tokens_per_s"]
                    rates[way].setdefault(file.stem, []).append(rate)
    print(file=sys.stderr)
    return rates


def show(rates: Rates, bars: Bars, title: str) -> dict[str, object]:
    """Print the figures and the bars, and return them."""
    medians = {way: {prompt: median(found) for prompt, found in each.items()} for way, each in rates.items()}
    means = {way: geometric_mean(each.values()) for way, each in medians.items()}
    print(f"\n{title}, tokens/s, geometric mean of {len(next(iter(medians.values())))} prompts")
    for way, mean in means.items():
        print(f"  {way:<14} {mean:7.1f}   " + " ".join(f"{rate:6.1f}" for rate in medians[way].values()))
    ratios = {}
    for name, (way, over, least) in bars.items():
        ratio = ratios[name] = means[way] / means[over]
        runs = [a / b for prompt in rates[way] for a, b in zip(rates[way][prompt], rates[over][prompt], strict=True)]
        print(f"  {name:<68} {ratio:.3f}  at least {least} {'pass' if ratio >= least else 'MISSED'}")
        print(f"    run by run {spread(speed_up(runs), 3)}, 95 % interval")
    return {"tokens_per_s": medians, "ratios": ratios, "runs": rates}
