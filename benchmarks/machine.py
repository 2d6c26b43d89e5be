"""Measures pairs of models on this machine, for the judge of the policy (benchmarks/regret.py).

python -m benchmarks.machine PAIR... [-r ROUNDS] [--name TEXT] [--json FILE]

Each round decodes one batch of every size, first one model at a time with all threads, then both concurrently, the
draft with one thread and the target with the others. A time is the median over all rounds, because the machine's speed
changes while it is measured.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import argument_parser
from benchmarks.models import PAIRS, opened
from duo.config import ContextConfig
from duo.diagnose.host import read_host
from duo.engine.cores import usable_cores
from duo.engine.decoder import Decoder, decode_all, return_to

SIZES = (*range(1, 10), 12, 16, 17)  # tokens in a batch of the target
N_READ = 64  # in a prompt batch of the draft
N_DRAFT = 8  # that the draft decodes in a round
SPIKE = 1.5  # multiple of the median
_CACHED = list(range(100, 164))  # the tokens in the cache while a decode is timed
CURVES = ("target_ms", "beside_target_ms")
SINGLES = ("draft_ms", "beside_draft_ms", "read_ms")  # the last one per token of a prompt
# Single times in seconds, by their names in benchmarks/machines and the tokens in a batch.
Series = dict[str, dict[int, list[float]]]


def empty() -> Series:
    return {name: {n: [] for n in (SIZES if name in CURVES else (1,))} for name in (*CURVES, *SINGLES)}


def figures(series: Series) -> dict[str, Any]:
    found = {name: {str(n): round(1000 * median(s), 3) for n, s in each.items()} for name, each in series.items()}
    return found | {name: found[name]["1"] for name in SINGLES}


def noise(found: Iterable[Series]) -> tuple[float, float]:
    """The standard deviation of the logarithm of a time over the median of those like it, and the share of spikes."""
    alike = [times for s in found for name, each in s.items() for times in each.values() if name != "read_ms"]
    ratios = [seconds / median(times) for times in alike for seconds in times]
    logs = [math.log(ratio) for ratio in ratios if ratio <= SPIKE]
    return math.sqrt(fmean(log**2 for log in logs)), 1 - len(logs) / len(ratios)


def run_round(target: Decoder, draft: Decoder, n_threads: int, found: Series) -> None:
    """Add one time of each batch to `found`, and several of single draft tokens."""
    for decoder in (target, draft):
        decoder.set_threads(n_threads, n_threads)
        seconds_of(decoder, 1)  # starts the threads
    for n in SIZES:
        found["target_ms"][n].append(seconds_of(target, n))
    found["draft_ms"][1] += [seconds_of(draft, 1) for _ in range(N_DRAFT)]
    found["read_ms"][1].append(seconds_of(draft, N_READ) / N_READ)
    concurrent = max(1, n_threads - 1)
    target.set_threads(concurrent, concurrent)
    draft.set_threads(1, 1)
    done = threading.Event()

    def drafting() -> None:
        while not done.is_set():
            found["beside_draft_ms"][1].append(seconds_of(draft, 1))

    with ThreadPoolExecutor(1) as thread:
        concurrent_draft = thread.submit(drafting)
        try:
            seconds_of(target, 1)
            for n in SIZES:
                found["beside_target_ms"][n].append(seconds_of(target, n))
        finally:
            done.set()
    concurrent_draft.result()


def seconds_of(decoder: Decoder, n: int) -> float:
    """The time of a batch of `n` tokens, with a row of logits for each but in a prompt batch."""
    start = time.perf_counter()
    decoder.decode(list(range(200, 200 + n)), 1 if n == N_READ else n)
    seconds = time.perf_counter() - start
    return_to(decoder, _CACHED)
    return seconds


def measure_pair(name: str, n_rounds: int) -> Series:
    """One round more is run first and not counted."""
    n_threads, paths = usable_cores(), [path() for path in PAIRS[name][:2]]
    with opened(paths, ContextConfig(512, n_threads, n_threads)) as (_, (target, draft)):
        for context in (target, draft):
            decode_all(context, _CACHED)
        run_round(target, draft, n_threads, empty())
        found = empty()
        for _ in range(n_rounds):
            run_round(target, draft, n_threads, found)
        return found


def document(name: str, n_rounds: int, found: dict[str, Series]) -> dict[str, Any]:
    spread, spikes = noise(found.values())
    how = f"python -m benchmarks.machine, medians of {n_rounds} rounds, llama-cpp-python {version('llama-cpp-python')}"
    return {
        "name": name, "source": f"{how}, {date.today().isoformat()}", "noise": round(spread, 3),
        "spikes": round(spikes, 4),
        "pairs": {pair: figures(series) | {"traces": pair} for pair, series in found.items()},
    }  # fmt: skip


def main() -> None:
    host = read_host()
    name = f"{host.machine} with {', '.join(host.instructions)}, {usable_cores()} cores"
    parser = argument_parser("machine", __doc__)
    add = parser.add_argument
    add("pairs", nargs="+", choices=PAIRS, metavar="PAIR", help=f"one of {', '.join(PAIRS)}")
    add("-r", "--rounds", type=int, default=20, metavar="N", help="number of rounds (default: 20)")
    add("--name", default=name, metavar="TEXT", help=f"name of the machine (default: {name})")
    add("--json", type=Path, metavar="FILE", help="write to FILE instead of standard output")
    options = parser.parse_args()
    found = {}
    for pair in options.pairs:
        print(f"{pair} …", file=sys.stderr, flush=True)
        found[pair] = measure_pair(pair, options.rounds)
    text = json.dumps(document(options.name, options.rounds, found), indent=1, ensure_ascii=False) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
