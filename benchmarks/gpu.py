"""Measures where target and draft are best off: on the CPU, on the card, or one on each.

python -m benchmarks.gpu [--cpu] [--quick] [--json FILE]; benchmarks/gpu.sh builds duo for the card first. README.md has
the protocol.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contestants import N_CTX, Contestant, duo_alone, example
from benchmarks.measure import ModelFile, read_model
from benchmarks.models import F32, PAIRS, Q2_K, tinyllama
from benchmarks.options import PROMPTS, parser, quiet_enough
from benchmarks.report import circumstances, models_json, print_bars, print_results, results_json, settings_json
from benchmarks.rounds import measure
from benchmarks.summary import Bar, Results
from duo.bench.peers import ParseError
from duo.bench.process import run_process

CPU = "CPU alone"
OFFLOAD = "offload "
TURNS, OVERLAPPED = "in turns", "overlapped"
ALL = "all"
LEAST = 1.75  # overlapped over the best partial offload
TIMES = 10  # as many bytes as the draft has, at least, for that to be required
SHARE = 0.3  # of the target that the card is taken to hold: the original's card held 24 GB of 75
MARGIN = 1 << 30  # of the card's memory, for what is computed


@dataclass(frozen=True, slots=True)
class Layers:
    """How many of the target's layers are on the card."""

    partial: tuple[str, ...]  # tries without a draft
    beside: str  # what a draft on the card leaves room for


def main() -> int:
    """Run the comparison; the exit status is 1 if the bar was measured and missed."""
    options = parse_options()
    if options.dry_run:
        return show_commands(options)
    try:
        target, draft = (read_model(path) for path in models(options))
        if options.prepare:
            return 0
        about = {**circumstances(options.peers), "load_before": quiet_enough(), "installation": installation(options)}
        layers = None if options.cpu else fit(target, draft, card_bytes(options, about["installation"], target))
        contestants = all_contestants(options.duo, layers)
        paths = (target.path, draft.path)
        results = measure(contestants, prompt_files(options), paths, options.n_tokens, options.repetitions)
    except (ParseError, OSError, CardError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    print_results(results, CPU)
    bar = overlapping(results, target, draft)
    print_bars([bar])
    if options.json:
        document = {
            **about,
            "models": models_json(target, draft),
            "settings": settings_json(options.n_tokens, options.repetitions),
            "baseline": CPU,
            "bars": [bar.as_json()],
            **results_json(results, options.n_tokens),
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(bar.passed is False)


class CardError(Exception):
    """There is no card, or nothing useful fits it."""


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    command_line = parser("gpu", (__doc__ or "").partition("\n")[0], n_tokens=128)
    add = command_line.add_argument
    add("--models", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="instead of TinyLlama in F32 and Q2_K")
    add(
        "--card", type=float, metavar="GB", help="memory of the card to use (what is free, at most 30 %% of the target)"
    )
    add(
        "--cpu", action="store_true", help="everything on the CPU, with the demo pair: what can be tried without a card"
    )
    add("--quick", action="store_true", help="two prompts once with the demo pair: a check, also of a small card")
    add("--prepare", action="store_true", help="make the models and leave; everything else works offline")
    add("--dry-run", action="store_true", help="show the commands and leave")
    options = command_line.parse_args()
    if options.quick:
        options.repetitions = 1
    return options


def models(options: argparse.Namespace) -> list[Path]:
    """The files of target and draft, made if they are not there."""
    if options.models:
        return list(options.models)
    if options.cpu or options.quick:
        return [path() for path in PAIRS["smollm2-f16"]]
    return [tinyllama(F32), tinyllama(Q2_K)]


def prompt_files(options: argparse.Namespace) -> list[Path]:
    """Those of the models, or those that --prompts names."""
    own = PROMPTS if options.models or options.cpu or options.quick else PROMPTS / "tinyllama"
    files = options.prompts or sorted(own.glob("*.txt"))
    return list(files)[:2] if options.quick else list(files)


def installation(options: argparse.Namespace) -> dict[str, Any]:
    """What `duo doctor` says. Asked in a process of its own: this one takes none of the card's memory."""
    cost = run_process([*options.duo, "doctor", "--json"], {})
    if cost.status not in (0, 1):
        raise ParseError(f"duo doctor exited with {cost.status}: {cost.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(cost.stdout)
    return found


def card_bytes(options: argparse.Namespace, found: dict[str, Any], target: ModelFile) -> int:
    """How much of the card may be used. Raises CardError if there is none.

    A card that takes the whole target needs no draft elsewhere, so no more than SHARE of the target counts.
    """
    cards = [device for device in found["build"]["devices"] if device["kind"] in ("GPU", "IGPU")]
    if not cards:
        raise CardError("this build has no card to compute on: see duo doctor, or run benchmarks/gpu.sh; or give --cpu")
    free = max(card["memory_free"] for card in cards) - MARGIN
    return int(min(free, options.card * 1e9 if options.card else SHARE * target.size))


def fit(target: ModelFile, draft: ModelFile, card: int) -> Layers:
    """How many of the target's layers fit `card` bytes, alone and beside the draft, with their KV caches.

    Raises CardError if not even the draft fits.
    """
    # The output layer counts as one more.
    layer = target.size / (target.n_layers + 1) + target.kv_cache_bytes(N_CTX) / target.n_layers
    left = card - draft.size - draft.kv_cache_bytes(N_CTX)
    if left < 0:
        raise CardError(f"the draft does not fit {card / 1e9:.2f} GB: take a smaller one, or --card")
    alone = min(int(card / layer), target.n_layers)
    # More layers are not always faster: the buffers take memory, too.
    tries = sorted({alone, alone * 3 // 4, alone // 2} - {0})
    return Layers(tuple(map(str, tries)), str(min(int(left / layer), target.n_layers)))


def all_contestants(duo: list[str], layers: Layers | None) -> list[Contestant]:
    """The ways to share the machine; None: everything is on the CPU."""
    alone = placed(duo, CPU, "-ngl", "0", "--draft", "0")
    if layers is None:
        both = ("-ngl", "0", "-ngld", "0", "--schedule")
        return [alone, placed(duo, TURNS, *both, "sync"), placed(duo, OVERLAPPED, *both, "async")]
    partial = [placed(duo, f"{OFFLOAD}{n}", "-ngl", n, "--draft", "0") for n in layers.partial]
    elsewhere = ("-ngl", "0", "-ngld", ALL, "--schedule")
    split = ("-ngl", layers.beside, "-ngld", ALL, "--schedule", "async")
    return [
        alone,
        *partial,
        placed(duo, f"draft on the card, {TURNS}", *elsewhere, "sync"),
        placed(duo, f"draft on the card, {OVERLAPPED}", *elsewhere, "async"),
        placed(duo, f"draft and {layers.beside} layers there, {OVERLAPPED}", *split),
    ]


def placed(duo: list[str], name: str, *more: str) -> Contestant:
    """duo with these options beside the models."""
    bare = duo_alone(duo)
    return replace(bare, name=name, command=lambda job: [*bare.command(job), *more], options={"options": list(more)})


def overlapping(results: Results, target: ModelFile, draft: ModelFile) -> Bar:
    """The fastest overlapped way over the best partial offload; not measured for drafts that are too large."""
    offload = _fastest(results, lambda name: name.startswith(OFFLOAD))
    both = _fastest(results, lambda name: name.endswith(OVERLAPPED))
    large_enough = target.size >= TIMES * draft.size
    figure = results.ratio(both, offload) if offload and both and large_enough else None
    against = f"the best partial offload ({offload or 'none here'})"
    return Bar(f"{both or OVERLAPPED}, target {target.size / draft.size:.1f} × the draft", against, figure, LEAST)


def _fastest(results: Results, wanted: Callable[[str], bool]) -> str | None:
    ranked = results.ranked([contestant for contestant in results.contestants if wanted(contestant.name)])
    return ranked[0].name if ranked else None


def show_commands(options: argparse.Namespace) -> int:
    """Print what would be run, with words in capitals for what is only known once the models are there."""
    task = example(options.n_tokens)
    ways: Sequence[Contestant] = all_contestants(options.duo, None if options.cpu else Layers(("N",), "M"))
    for command in ([*options.duo, "doctor", "--json"], *(way.command(task) for way in ways)):
        print(shlex.join(command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
