"""Measures duo, pair by pair of models, beside the llama.cpp program that is fastest for that pair.

python -m benchmarks.pairs [--part one-core] [--pairs NAME...] [--json FILE]; README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import completion
from benchmarks.measure import read_model
from benchmarks.models import PAIRS
from benchmarks.options import parser, quiet_enough
from benchmarks.report import circumstances, print_bars, print_results, settings_json
from benchmarks.rounds import measure
from benchmarks.rows import PARTS, Outcome, Row, bars_of_all
from benchmarks.summary import Bar
from duo.bench.peers import ParseError

SCREEN_PROMPTS, FINALISTS = 2, 2


def main() -> int:
    """Measure row by row; the exit status is 1 if a bar that was measured is missed."""
    options = parse_options()
    rows = chosen_rows(options)
    about = {
        **circumstances(options.peers),
        "load_before": quiet_enough(),
        "part": options.part,
        "settings": settings_json(options.n_tokens, options.repetitions) | {"screen_tokens": options.screen_tokens},
    }
    outcomes: list[Outcome] = []
    bars: list[Bar] = []
    try:
        for row in rows:
            outcomes.append(measure_row(row, options))
            bars = bars_of_all(PARTS[options.part], outcomes)
            print_row(outcomes[-1])
            write(options, about, outcomes, bars)
    except (ParseError, OSError) as error:
        print(f"pairs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"pairs: interrupted after {len(outcomes)} of {len(rows)} rows", file=sys.stderr)
        return 130
    print_bars(bars)
    return 1 if any(bar.passed is False for bar in bars) else 0


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    command_line = parser("pairs", __doc__.partition("\n")[0], n_tokens=128)
    add = command_line.add_argument
    add("--part", choices=PARTS, default="main", help="no flags but the models, or one core for each model (main)")
    add("--pairs", nargs="+", metavar="NAME", help="only these pairs or rows")
    add("--screen-tokens", type=int, default=64, metavar="N", help="tokens per run of the screen (%(default)s)")
    return command_line.parse_args()


def chosen_rows(options: argparse.Namespace) -> list[Row]:
    """The rows of the part, or those that --pairs names."""
    rows = PARTS[options.part].rows
    known = {name for row in rows for name in (row.pair, row.name)}
    if unknown := set(options.pairs or ()) - known:
        raise SystemExit(f"pairs: no {', '.join(sorted(unknown))} among: {', '.join(sorted(known))}")
    if not options.peers.is_dir():
        raise SystemExit(f"pairs: no {options.peers}: run benchmarks/peers.sh")
    return [row for row in rows if options.pairs is None or {row.pair, row.name} & set(options.pairs)]


def measure_row(row: Row, options: argparse.Namespace) -> Outcome:
    """Find the fastest peers with few tokens, then run these again beside duo."""
    part, programs = PARTS[options.part], options.peers.resolve()
    target, draft = (read_model(path()) for path in PAIRS[row.pair])
    models, files = (target.path, draft.path), options.prompts or row.prompt_files
    peers = part.peers(programs)
    screen = measure(peers, files[:SCREEN_PROMPTS], models, options.screen_tokens, 1)
    finalists = screen.ranked(peers)[:FINALISTS]
    if not finalists:
        raise ParseError(f"{row.name}: both texts of the screen loop")
    duo = part.duo(options.duo)
    plain = [completion(programs, 1)] if row.over_plain is not None else []
    results = measure([*plain, *finalists, duo], files, models, options.n_tokens, options.repetitions)
    return Outcome(row, (target, draft), screen, results, finalists, duo)


def print_row(outcome: Outcome) -> None:
    """Print the screen's first places, the table and the ratios of one row."""
    screen, left_out = outcome.screen, outcome.results.looping()
    places = [f"{peer.name} {screen.mean_tps(peer.name):.1f}" for peer in screen.ranked(screen.contestants)]
    print(f"\n{outcome.row.name}; fastest of the screen: {', '.join(places[:4])} tokens/s")
    print_results(outcome.results, outcome.best_peer)
    ratios = [f"{prompt} {ratio:.2f}" for prompt, ratio in outcome.ratios.items() if prompt not in left_out]
    print(f"{outcome.duo.name} over {outcome.best_peer}: {', '.join(ratios)}")
    print(f"{outcome.duo.name}'s first run: {outcome.cold_tps:.1f} tokens/s")
    print_bars(outcome.bars())


def write(options: argparse.Namespace, about: dict[str, Any], outcomes: Sequence[Outcome], bars: Sequence[Bar]) -> None:
    """Write what there is up to now."""
    if options.json is None:
        return
    document = {
        **about,
        "bars": [bar.as_json() for bar in bars],
        "rows": {outcome.row.name: outcome.as_json(options.n_tokens, options.screen_tokens) for outcome in outcomes},
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
