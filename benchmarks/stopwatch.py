"""Measures `duo bench` itself: its figures beside an outside stopwatch, and beside what llama-completion says.

python -m benchmarks.stopwatch [-r N] [-n N] [-t N] [--json FILE]; README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.contestants import N_CTX
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.report import circumstances, print_bars
from benchmarks.run import prompts_file
from benchmarks.summary import Bar
from duo.bench.contestant import Job
from duo.bench.peers import completion_command, parse_completion
from duo.bench.process import Cost, run_process
from duo.engine.cores import usable_cores

FEW = 16  # tokens of the short run: what both take besides is the same, and drops out
TOLERANCE = 0.03

BENCH_DUO, STOPPED_DUO = "duo bench: plain", "stopwatch: duo"
BENCH_PEER, PEER, STOPPED_PEER = "duo bench: llama-completion", "llama-completion itself", "stopwatch: llama-completion"
BARS = ((BENCH_DUO, STOPPED_DUO), (BENCH_PEER, PEER), (BENCH_PEER, STOPPED_PEER), (BENCH_DUO, PEER))


def main() -> int:
    options = parse_options()
    target = PAIRS["smollm2-f16"][0]()
    files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    about = {**circumstances(options.peers), "load_before": quiet_enough()}
    rounds = []
    for i in range(options.repetitions):
        file = files[i % len(files)]
        rounds.append({"prompt": file.stem, **measure_round(target, file, options)})
        print(f"{i + 1}/{options.repetitions} {rounds[-1]}", flush=True)
    bars = []
    for figure, other in BARS:
        ratio = median(float(found[figure]) / float(found[other]) for found in rounds)
        print(f"{figure} over {other}: {ratio:.3f}")
        bars.append(Bar(f"{figure}, off by", other, abs(ratio - 1), TOLERANCE, at_most=True))
    print_bars(bars)
    document = {**about, "bars": [bar.as_json() for bar in bars], "rounds": rounds}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(bar.passed for bar in bars) else 1


def parse_options() -> argparse.Namespace:
    command_line = parser("stopwatch", (__doc__ or "").partition("\n")[0], n_tokens=256)
    command_line.add_argument("-t", "--threads", type=int, default=usable_cores(), metavar="N", help="(%(default)s)")
    return command_line.parse_args()


def measure_round(target: Path, file: Path, options: argparse.Namespace) -> dict[str, float]:
    """Tokens/s of plain decoding after one prompt, by all that have a clock, one after the other."""
    n, threads = options.n_tokens, str(options.threads)
    program = options.peers.resolve() / "llama-completion"
    prompt = file.read_text(encoding="utf-8").removesuffix("\n")
    duo = [
        *options.duo,
        "-m",
        str(target),
        "-f",
        str(file),
        "--no-escape",
        "-t",
        threads,
        "--ignore-eos",
        "-c",
        str(N_CTX),
    ]
    with tempfile.TemporaryDirectory() as folder:
        prompts = prompts_file([file], Path(folder))
        bench = [*options.duo, "bench", "-m", str(target), "--prompts", str(prompts), "--raw", "-t", threads, "-r", "1"]
        bench += ["-n", str(n), "--peers", f"llama-completion={program}", "-o", "json"]
        rows = json.loads(_run(bench).stdout)["rows"]
        jobs = [Job(target, None, prompt, file, tokens, N_CTX) for tokens in (n, FEW)]
        peer, short_peer = (_run(completion_command(program, job, options.threads)) for job in jobs)
        own, short_own = (_run([*duo, "-n", str(tokens)]) for tokens in (n, FEW))
    return {
        BENCH_DUO: rows[0]["tokens_per_s"],
        STOPPED_DUO: (n - FEW) / (own.wall_s - short_own.wall_s),
        BENCH_PEER: rows[1]["tokens_per_s"],
        PEER: parse_completion(jobs[0], peer).tokens_per_s,
        STOPPED_PEER: (n - FEW) / (peer.wall_s - short_peer.wall_s),
    }


def _run(command: Sequence[str]) -> Cost:
    cost = run_process(command)
    if cost.status:
        raise SystemExit(f"stopwatch: {' '.join(command)} exited with {cost.status}\n{cost.stderr[-1000:]}")
    return cost


if __name__ == "__main__":
    sys.exit(main())
