"""Measures duo beside llama.cpp's own programs on the same models, prompts and machine.

python -m benchmarks.compare [--quick] [--json FILE]; benchmarks/peers.sh first. README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from shlex import split
from typing import Any

from benchmarks.contestants import N_CTX, Contestant, Job, Output, ParseError, Run, all_contestants
from benchmarks.measure import (
    REPOSITORY,
    Cost,
    ModelFile,
    git_commit,
    hardware,
    read_model,
    run_process,
    versions,
)
from benchmarks.summary import REFERENCE, Bar, Results, Sample, distinct_share

PROMPTS = REPOSITORY / "benchmarks" / "prompts"
PEERS = REPOSITORY / "build" / "peers" / "bin"


def main() -> int:
    """Run the comparison; the exit status is 1 if a bar that was measured is missed."""
    options = parse_options()
    contestants = chosen_contestants(options)
    prompt_files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    if options.quick:
        prompt_files, options.repetitions = prompt_files[:2], 1
    load = quiet_enough()
    target, draft = (read_model(path) for path in options.models or demo_models())
    results = Results(contestants, [file.stem for file in prompt_files])
    try:
        measure(results, prompt_files, (target.path, draft.path), options.n_tokens, options.repetitions)
    except (ParseError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    bars = results.bars(target, draft)
    print_results(results, bars)
    document = as_json(options, results, bars, (target, draft), load)
    if options.json:
        options.json.write_text(document + "\n", encoding="utf-8")
    print(document)
    return 1 if any(bar.passed is False for bar in bars) else 0


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    summary = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=summary)
    add = parser.add_argument
    add("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each; medians count (5)")
    add("-n", "--n-tokens", type=int, default=256, metavar="N", help="tokens per run (256)")
    add("--models", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="instead of the demo pair")
    add("--prompts", type=Path, nargs="+", metavar="FILE", help="instead of benchmarks/prompts/*.txt")
    add("--only", nargs="+", metavar="NAME", help="contestants whose names begin with one of these")
    add("--quick", action="store_true", help="one repetition of two prompts: a check, not a measurement")
    add("--duo", type=split, default=duo_command(), metavar="COMMAND", help="how duo is started")
    add("--peers", type=Path, default=PEERS, metavar="DIR", help="llama.cpp's programs")
    add("--json", type=Path, metavar="FILE", help="also write the JSON document here")
    return parser.parse_args()


def duo_command() -> list[str]:
    """The installed `duo` of this interpreter, or the module in this tree."""
    installed = Path(sys.executable).parent / "duo"
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "duo.cli.main"]


def quiet_enough() -> float:
    """The load of the last minute; says so if another program is at work, because it takes a core from somebody."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"compare: load {load:.2f} before the first run: is the machine busy?", file=sys.stderr)
    return round(load, 2)


def demo_models() -> tuple[Path, Path]:
    """The demo pair, fetched if it is not there."""
    from duo.models.demo import demo_pair  # noqa: PLC0415 (peers alone are measured without duo)

    return demo_pair()


def chosen_contestants(options: argparse.Namespace) -> list[Contestant]:
    """All of them, or those that --only names."""
    contestants = all_contestants(options.duo, options.peers.resolve())
    chosen = [c for c in contestants if options.only is None or c.name.startswith(tuple(options.only))]
    if not chosen:
        raise SystemExit(f"compare: --only names none of: {', '.join(c.name for c in contestants)}")
    if any(c.program != "duo" for c in chosen) and not options.peers.is_dir():
        raise SystemExit(f"compare: no {options.peers}: run benchmarks/peers.sh, or --only duo")
    return chosen


def measure(
    results: Results, prompt_files: Sequence[Path], models: tuple[Path, Path], n_tokens: int, repetitions: int
) -> None:
    """Take all samples: every repetition asks each contestant once per prompt, each time in another order."""
    n_round = 0
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(repetitions):
            for file in prompt_files:
                job = Job(*models, file.resolve(), n_tokens, Path(folder) / "duo.json")
                first = n_round % len(results.contestants)
                n_round += 1
                for contestant in results.contestants[first:] + results.contestants[:first]:
                    note(f"{repetition + 1}/{repetitions} {file.stem}: {contestant.name}")
                    results.add(contestant.name, file.stem, take_sample(contestant, job))
    note("")


def take_sample(contestant: Contestant, job: Job) -> Sample:
    """Run one contestant once."""
    command = contestant.command(job)
    job.json_file.unlink(missing_ok=True)
    cost = run_process(command)
    if cost.status != 0:
        raise ParseError(f"{contestant.name} exited with {cost.status}: {' '.join(command)}\n{cost.stderr[-2000:]}")
    return Sample(read_run(contestant, job, cost), cost)


def read_run(contestant: Contestant, job: Job, cost: Cost) -> Run:
    """Read its output; a run that stopped early is an error, because its rate would not compare."""
    json_text = job.json_file.read_text(encoding="utf-8") if job.json_file.exists() else None
    try:
        run = contestant.parse(job, Output(cost.stdout, cost.stderr, json_text))
    except (KeyError, TypeError, ValueError, ParseError) as error:
        raise ParseError(f"{contestant.name}: cannot read its output: {error!r}") from error
    if run.tokens < job.n_tokens:
        raise ParseError(f"{contestant.name}: {run.tokens} tokens instead of {job.n_tokens} on {job.prompt_file}")
    return run


def note(text: str) -> None:
    """Show what is running, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def print_results(results: Results, bars: Sequence[Bar]) -> None:
    """Print the table and the bars."""
    baseline = results.mean_tps(REFERENCE)
    width = max(len(contestant.name) for contestant in results.contestants)
    columns = "".join(f"{prompt[:11]:>12}" for prompt in results.prompts)
    print(f"{'tokens/s':<{width}}{columns}{'mean':>9}{'ratio':>7}{'peak MB':>9}{'first s':>9}  text")
    for contestant in results.contestants:
        name = contestant.name
        rates = "".join(f"{results.tps(name, prompt):>12.1f}" for prompt in results.prompts)
        mean = results.mean_tps(name)
        ratio = f"{mean / baseline:.2f}" if mean and baseline else "-"
        costs = f"{(results.peak_bytes(name) or 0) / 1e6:>9.0f}{results.first_byte_s(name) or 0:>9.2f}"
        parted = ", ".join(f"{prompt} {place}" for prompt, place in results.differences(name).items())
        text = f"differs from character: {parted}" if parted else "same"
        print(f"{name:<{width}}{rates}{mean or 0:>9.1f}{ratio:>7}{costs}  {text}")
    shares = "".join(f"{distinct_share(results.reference_text(prompt)):>12.0%}" for prompt in results.prompts)
    print(f"{'distinct':<{width}}{shares}")
    for prompt in results.looping():
        print(f"{prompt} loops: left out of the means")
    print()
    for bar in bars:
        figure = "-" if bar.figure is None else f"{bar.figure:.2f}"
        verdict = {True: "pass", False: "MISSED", None: "not measured"}[bar.passed]
        against = f" against {bar.against}" if bar.against else ""
        required = f"{'at most' if bar.at_most else 'at least'} {bar.required:g}"
        print(f"{bar.name + against:<62}{figure:>8}  {required:<14}{verdict}")
    print()


def as_json(
    options: argparse.Namespace,
    results: Results,
    bars: Sequence[Bar],
    models: tuple[ModelFile, ModelFile],
    load_before: float,
) -> str:
    """The one document that a recorded result consists of."""
    document: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **git_commit(),
        "hardware": hardware(),
        "versions": versions(options.peers),
        "models": {"target": models[0].as_json(), "draft": models[1].as_json()},
        "settings": {"n_tokens": options.n_tokens, "repetitions": options.repetitions, "n_ctx": N_CTX},
        "load_before": load_before,
        "baseline": REFERENCE,
        **results.as_json(bars),
    }
    example = Job(Path("TARGET"), Path("DRAFT"), Path("PROMPT"), options.n_tokens, Path("STATISTICS"))
    for contestant in results.contestants:
        command = contestant.command(example)
        document["contestants"][contestant.name]["command"] = [Path(command[0]).name, *command[1:]]
    return json.dumps(document, indent=1)


if __name__ == "__main__":
    sys.exit(main())
