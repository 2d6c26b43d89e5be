"""Measures duo beside llama.cpp's own programs on the same models, prompts and machine.

python -m benchmarks.compare [--quick] [--json FILE]; benchmarks/peers.sh first. README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.contestants import Contestant, all_contestants
from benchmarks.measure import read_model
from benchmarks.models import PAIRS
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.report import circumstances, models_json, print_bars, print_results, results_json, settings_json
from benchmarks.rounds import measure
from benchmarks.summary import REFERENCE
from duo.bench.peers import ParseError


def main() -> int:
    """Run the comparison; the exit status is 1 if a bar that was measured is missed."""
    options = parse_options()
    contestants = chosen_contestants(options)
    prompt_files = options.prompts or sorted(PROMPTS.glob("*.txt"))
    if options.quick:
        prompt_files, options.repetitions = prompt_files[:2], 1
    about = {**circumstances(options.peers), "load_before": quiet_enough()}
    target, draft = (read_model(path) for path in options.models or [path() for path in PAIRS["smollm2-f16"]])
    try:
        models = (target.path, draft.path)
        results = measure(contestants, prompt_files, models, options.n_tokens, options.repetitions)
    except (ParseError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    bars = results.bars(target, draft)
    print_results(results, REFERENCE)
    print_bars(bars)
    document = {
        **about,
        "models": models_json(target, draft),
        "settings": settings_json(options.n_tokens, options.repetitions),
        "baseline": REFERENCE,
        "bars": [bar.as_json() for bar in bars],
        **results_json(results, options.n_tokens),
    }
    text = json.dumps(document, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if any(bar.passed is False for bar in bars) else 0


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    command_line = parser("compare", __doc__.partition("\n")[0], n_tokens=256)
    add = command_line.add_argument
    add("--models", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="instead of the demo pair")
    add("--only", nargs="+", metavar="NAME", help="contestants whose names begin with one of these")
    add("--quick", action="store_true", help="one repetition of two prompts: a check, not a measurement")
    return command_line.parse_args()


def chosen_contestants(options: argparse.Namespace) -> list[Contestant]:
    """All of them, or those that --only names."""
    contestants = all_contestants(options.duo, options.peers.resolve())
    chosen = [c for c in contestants if options.only is None or c.name.startswith(tuple(options.only))]
    if not chosen:
        raise SystemExit(f"compare: --only names none of: {', '.join(c.name for c in contestants)}")
    if any(c.program != "duo" for c in chosen) and not options.peers.is_dir():
        raise SystemExit(f"compare: no {options.peers}: run benchmarks/peers.sh, or --only duo")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
