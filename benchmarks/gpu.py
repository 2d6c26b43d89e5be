"""Compares placements of target and draft: on the CPU, on the GPU, or one on each.

python -m benchmarks.gpu [--cpu] [--quick] [--json FILE]; benchmarks/gpu.sh builds duo for the GPU first. See README.md.
--dry-run needs no third-party packages.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import PROMPTS
from benchmarks.contestants import ALONE, N_CTX, Duo, Setup, duo
from benchmarks.models import F32, PAIRS, Q2_K, Q4_0, REPEAT_TINYLLAMA, Pair, smollm2, tinyllama
from benchmarks.options import parser
from duo.bench.contestant import Contestant
from duo.bench.process import run_process

if TYPE_CHECKING:
    from benchmarks.measure import Bar
    from duo.llama.model_size import ModelSize

CPU, OFFLOAD, CONCURRENT = "CPU alone", "offload", "async"
NO_BRANCHES, OTHER = f"{CONCURRENT} without branches", "other vocabulary"
LOOKUP, WITH_LOOKUP = "lookup, CPU alone", "lookup and async"
AUTO_ALONE, COLD, WARM = "no options, target alone", "no options, first run", "no options, later runs"
NO_WARM_UP = "no options, no warm-up"
LEAST = 1.75  # concurrent over the best partial offload
TIMES = 10  # least size of the target over the draft for which LEAST is required
SHARE = 0.3  # share of the target that fits the card; the original's card held 24 GB of 75
MARGIN = 1 << 30  # bytes of GPU memory left for compute buffers
_QUICK = 2  # prompts
_MOST = 16  # rounds, one for each prompt of the default pair
_MINUTES = 15.0


class CardError(Exception):
    """No GPU is available, or its memory is too small."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Numbers of target layers on the GPU."""

    partial: tuple[str, ...]  # offloads without a draft
    with_draft: str  # that fit together with the draft


def main() -> int:
    """The exit status: see benchmarks.__main__."""
    began, options = time.monotonic(), parse_options()
    if options.dry_run:
        return show_commands(options)
    target, draft, prompts = pair(options)
    paths, other = (target(), draft()), other_draft(options)
    if options.prepare:
        return 0
    from benchmarks.__main__ import run  # noqa: PLC0415 - not for a dry run
    from benchmarks.gpu_report import Placements  # noqa: PLC0415
    from benchmarks.measure import note  # noqa: PLC0415

    try:
        found = installation(options)
        layers = None if options.cpu else fit(*paths, card_bytes(options, found, paths[0]))
    except CardError as error:
        note(f"gpu: {error}")
        return 2
    scenario = Placements(
        "Placements of target and draft on CPU and GPU", n_rounds=_QUICK if options.quick else _MOST, n_tokens=128,
        contestants=lambda setup: contestants(setup, layers, other), baseline=CPU, installation=found,
        bars=lambda setup: [] if options.cpu or options.quick else bars(setup),
        unmeasured=lambda setup: unmeasured(setup, layers), minutes=options.minutes, began=began, timed=not options.cpu,
    )  # fmt: skip
    pairs = {paths[0].stem: (lambda: paths[0], lambda: paths[1], prompts)}
    return run("gpu", scenario, pairs, options, installation=found)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    command_line = parser("python -m benchmarks.gpu", (__doc__ or "").partition("\n")[0])
    add = command_line.add_argument
    add("--models", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="instead of TinyLlama in F32 and Q2_K")
    add("--other", type=Path, metavar="DRAFT", help="a draft with another vocabulary (default: SmolLM2 for TinyLlama)")
    add("--minutes", type=float, default=_MINUTES, metavar="M",
        help="as many rounds as fit, at least one (default: %(default)g)")  # fmt: skip
    add("--card", type=float, metavar="GB", help="GPU memory to use (default: free, at most 30 %% of the target)")
    add("--cpu", action="store_true", help="test run without a GPU: everything on the CPU, with the demo pair")
    add("--quick", action="store_true", help="short test run: the demo pair, two prompts once; also for small GPUs")
    add("--prepare", action="store_true", help="create the models and exit; all other steps work offline")
    add("--dry-run", action="store_true", help="show the commands and exit")
    return command_line.parse_args()


def pair(options: argparse.Namespace) -> Pair:
    """Target, draft and prompts: texts that repeat little of their prompts, and in turn with them texts that do."""
    if options.models:
        target, draft = options.models
        return lambda: target, lambda: draft, [PROMPTS, PROMPTS / "repeat"]
    if options.cpu or options.quick:
        target, draft, _ = PAIRS["smollm2-f16"]
        return target, draft, [PROMPTS, PROMPTS / "repeat"]
    return lambda: tinyllama(F32), lambda: tinyllama(Q2_K), [PROMPTS / "tinyllama", REPEAT_TINYLLAMA]


def other_draft(options: argparse.Namespace) -> Path | None:
    """A draft with another vocabulary than the target's; None without one."""
    if options.other:
        return Path(options.other)
    return None if options.models or options.cpu or options.quick else smollm2(Q4_0)


def installation(options: argparse.Namespace) -> dict[str, Any]:
    """The report of `duo doctor`, which runs in a separate process so that this one uses no GPU memory."""
    cost = run_process([*options.duo, "doctor", "--json"])
    if cost.status not in (0, 1):
        raise CardError(f"duo doctor exited with {cost.status}: {cost.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(cost.stdout)
    for name in ("folders", "problems", "environment"):  # these contain local paths
        found.pop(name, None)
    return found


def card_bytes(options: argparse.Namespace, found: dict[str, Any], target: Path) -> int:
    """The GPU memory to use. Raises CardError without a GPU.

    The scenario is about targets that do not fit the GPU, so at most SHARE of the target's size is used. The demo
    pair's draft alone is larger than that, so a quick run uses as much as the target needs.
    """
    cards = [device for device in found["build"]["devices"] if device["kind"] in ("GPU", "IGPU")]
    if not cards:
        raise CardError("this build of llama.cpp finds no GPU: run benchmarks/gpu.sh, see duo doctor, or use --cpu")
    free = max(card["memory_free"] for card in cards) - MARGIN
    share = 1.0 if options.quick and not options.models else SHARE
    return int(min(free, options.card * 1e9 if options.card else share * target.stat().st_size))


def fit(target: Path, draft: Path, card: int) -> Layers:
    """The numbers of target layers, with their KV caches, that fit `card` bytes without and with the draft.

    Raises CardError if the draft does not fit.
    """
    from duo.config import ModelConfig  # noqa: PLC0415 - not for a dry run
    from duo.llama.model_size import model_size  # noqa: PLC0415

    sizes = [model_size(ModelConfig(path)) for path in (target, draft)]
    n_layers = len(sizes[0].layers)
    layer = (sizes[0].n_bytes + _cache(sizes[0])) / (n_layers + 1)  # the output layer counts as one layer
    left = card - sizes[1].n_bytes - _cache(sizes[1])
    if left < 0:
        raise CardError(f"the draft does not fit {card / 1e9:.2f} GB: use a smaller draft or a larger --card")
    alone = min(int(card / layer), n_layers)
    # More layers are not always faster: compute buffers need memory too.
    tries = sorted({alone, alone * 3 // 4, alone // 2} - {0})
    return Layers(tuple(map(str, tries)), str(min(int(left / layer), n_layers)))


def _cache(size: ModelSize) -> int:
    from duo.config import ContextConfig  # noqa: PLC0415 - not for a dry run

    return sum(size.cache_bytes(ContextConfig(N_CTX, 1, 1)))


def contestants(setup: Setup, layers: Layers | None, other: Path | None = None) -> list[Contestant]:
    """The placements and sources of candidates to compare; only those on the CPU if `layers` is None."""
    place, on = ("draft on the CPU", "0") if layers is None else ("draft on the card", "all")
    found = {CPU: f"-ngl 0 {ALONE}"}
    if layers is not None:
        found |= {f"{OFFLOAD} {n}": f"-ngl {n} {ALONE}" for n in layers.partial}
    draft = f"-md {{draft}} -ngl 0 -ngld {on}"
    found |= {
        f"sync, {place}": f"{draft} {ALONE} --schedule sync",
        f"{NO_BRANCHES}, {place}": f"{draft} {ALONE} --schedule async --branches 0",
        f"{CONCURRENT}, {place}": f"{draft} {ALONE} --schedule async",
    }
    if layers is not None:
        n = layers.with_draft
        name = f"{CONCURRENT}, draft and {n} layers on the card"
        found[name] = f"-md {{draft}} -ngl {n} -ngld all {ALONE} --schedule async"
    found |= {LOOKUP: "-ngl 0", f"{WITH_LOOKUP}, {place}": f"{draft} --schedule async"}
    if other is not None:
        found[f"{OTHER}, {place}"] = f"-md {shlex.quote(str(other))} -ngl 0 -ngld {on} {ALONE}"
    auto = _auto(layers)
    found |= {AUTO_ALONE: f"{ALONE}{auto}", COLD: f"-md {{draft}} --no-profile{auto}", WARM: f"-md {{draft}}{auto}"}
    return [duo(setup, name, options) for name, options in found.items()]


def unmeasured(setup: Setup, layers: Layers | None) -> list[Contestant]:
    """Runs outside of the rounds: without a warm-up; and with --exact, each target without and with the draft."""
    on = "0" if layers is None else "all"
    found = {NO_WARM_UP: f"-md {{draft}} --no-profile --no-warmup{_auto(layers)}"}
    for n in dict.fromkeys(["0"] if layers is None else ["0", layers.with_draft]):
        place = "on the CPU" if n == "0" else f"with {n} layers on the card"
        found[place] = f"-ngl {n} {ALONE} --exact --no-profile"
        found[f"{place}, with the draft"] = (
            f"-md {{draft}} -ngl {n} -ngld {on} {ALONE} --exact --no-profile --schedule async"
        )
    return [duo(setup, name, options) for name, options in found.items()]


def _auto(layers: Layers | None) -> str:
    """The options of a run without options: those of a test run keep it off a GPU."""
    return " -ngl 0 -ngld 0" if layers is None else ""


def bars(setup: Setup) -> Sequence[Bar]:
    """Of the rates: the target much larger than the draft is faster concurrently, and nothing is slower than alone."""
    from benchmarks.measure import Bar  # noqa: PLC0415 - not for a dry run

    sizes = [path.stat().st_size for path in (setup.target, setup.draft)]
    return [
        *([Bar(CONCURRENT, OFFLOAD, LEAST)] if sizes[0] >= TIMES * sizes[1] else []),
        Bar(f"{CONCURRENT}, draft on", NO_BRANCHES, 0.97),
        Bar(LOOKUP, CPU, 0.985),
        Bar(WITH_LOOKUP, f"{CONCURRENT}, draft on", 0.97),
        Bar(OTHER, CPU, 0.97),
        Bar(COLD, AUTO_ALONE, 0.96),
        Bar(WARM, AUTO_ALONE, 0.98),
    ]


def show_commands(options: argparse.Namespace) -> int:
    """Print the commands, with placeholders in capitals for values that need the models."""
    setup = Setup(
        "", Path("TARGET"), Path("DRAFT"), (), 0, options.n_tokens or 128, options.duo, Path(), (), Path(), ExitStack()
    )
    layers, other = None if options.cpu else Layers(("N",), "M"), options.other or Path("OTHER")
    ways = [*unmeasured(setup, layers), *contestants(setup, layers, other)]
    commands = [way.writer.command(setup.job) for way in ways if isinstance(way.writer, Duo)]
    for command in ([*options.duo, "doctor", "--json"], *commands):
        print(shlex.join(command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
