"""Compares placements of target and draft: on the CPU, on the GPU, or one on each.

python -m benchmarks.gpu [--cpu] [--quick] [--json FILE]; benchmarks/gpu.sh builds duo with CUDA first. See README.md.
--dry-run needs no third-party packages.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import PROMPTS
from benchmarks.contestants import ALONE, N_CTX, Duo, Setup, duo
from benchmarks.models import F32, PAIRS, Q2_K, Pair, tinyllama
from benchmarks.options import parser
from duo.bench.contestant import Contestant
from duo.bench.process import run_process

if TYPE_CHECKING:
    from duo.llama.gguf_file import ModelSize

CPU, OFFLOAD, CONCURRENT = "CPU alone", "offload", "async"
LEAST = 1.75  # concurrent over the best partial offload
TIMES = 10  # least size of the target over the draft for which LEAST is required
SHARE = 0.3  # share of the target that fits the card; the original's card held 24 GB of 75
MARGIN = 1 << 30  # bytes of GPU memory left for compute buffers
_QUICK = 2  # prompts


class CardError(Exception):
    """No GPU is available, or its memory is too small."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Numbers of target layers on the GPU."""

    partial: tuple[str, ...]  # offloads without a draft
    with_draft: str  # that fit together with the draft


def main() -> int:
    """The exit status: see benchmarks.__main__."""
    options = parse_options()
    if options.dry_run:
        return show_commands(options)
    target, draft, prompts = pair(options)
    paths = target(), draft()
    if options.prepare:
        return 0
    from benchmarks.__main__ import run  # noqa: PLC0415 - not for a dry run
    from benchmarks.measure import Bar, Comparison, note  # noqa: PLC0415

    def bars(setup: Setup) -> Sequence[Bar]:
        sizes = [path.stat().st_size for path in (setup.target, setup.draft)]
        return [Bar(CONCURRENT, OFFLOAD, LEAST)] if sizes[0] >= TIMES * sizes[1] else []

    try:
        found = installation(options)
        layers = None if options.cpu else fit(*paths, card_bytes(options, found, paths[0]))
    except CardError as error:
        note(f"gpu: {error}")
        return 2
    scenario = Comparison(
        "Placements of target and draft on CPU and GPU", n_rounds=_QUICK if options.quick else 40, n_tokens=128,
        contestants=lambda setup: contestants(setup, layers), baseline=CPU, bars=bars,
    )  # fmt: skip
    pairs = {paths[0].stem: (lambda: paths[0], lambda: paths[1], prompts)}
    return run("gpu", scenario, pairs, options, installation=found)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    command_line = parser("python -m benchmarks.gpu", (__doc__ or "").partition("\n")[0])
    add = command_line.add_argument
    add("--models", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help="instead of TinyLlama in F32 and Q2_K")
    add("--card", type=float, metavar="GB", help="GPU memory to use (default: free, at most 30 %% of the target)")
    add("--cpu", action="store_true", help="test run without a GPU: everything on the CPU, with the demo pair")
    add("--quick", action="store_true", help="short test run: the demo pair, two prompts once; also for small GPUs")
    add("--prepare", action="store_true", help="create the models and exit; all other steps work offline")
    add("--dry-run", action="store_true", help="show the commands and exit")
    return command_line.parse_args()


def pair(options: argparse.Namespace) -> Pair:
    """Target, draft and prompts."""
    if options.models:
        target, draft = options.models
        return lambda: target, lambda: draft, [PROMPTS]
    if options.cpu or options.quick:
        return PAIRS["smollm2-f16"]
    return lambda: tinyllama(F32), lambda: tinyllama(Q2_K), [PROMPTS / "tinyllama"]


def installation(options: argparse.Namespace) -> dict[str, Any]:
    """The report of `duo doctor`, which runs in a separate process so that this one uses no GPU memory."""
    cost = run_process([*options.duo, "doctor", "--json"])
    if cost.status not in (0, 1):
        raise CardError(f"duo doctor exited with {cost.status}: {cost.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(cost.stdout)
    return found


def card_bytes(options: argparse.Namespace, found: dict[str, Any], target: Path) -> int:
    """The GPU memory to use. Raises CardError without a GPU.

    The scenario is about targets that do not fit the GPU, so at most SHARE of the target's size is used.
    """
    cards = [device for device in found["build"]["devices"] if device["kind"] in ("GPU", "IGPU")]
    if not cards:
        raise CardError("this build of llama.cpp finds no GPU: run benchmarks/gpu.sh, see duo doctor, or use --cpu")
    free = max(card["memory_free"] for card in cards) - MARGIN
    return int(min(free, options.card * 1e9 if options.card else SHARE * target.stat().st_size))


def fit(target: Path, draft: Path, card: int) -> Layers:
    """The numbers of target layers, with their KV caches, that fit `card` bytes without and with the draft.

    Raises CardError if the draft does not fit.
    """
    from duo.config import ModelConfig  # noqa: PLC0415 - not for a dry run
    from duo.llama.gguf_file import model_size  # noqa: PLC0415

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


def contestants(setup: Setup, layers: Layers | None) -> list[Contestant]:
    """The placements to compare; only those on the CPU if `layers` is None."""
    found = {CPU: "-ngl 0 --draft 0"}
    if layers is not None:
        found |= {f"{OFFLOAD} {n}": f"-ngl {n} --draft 0" for n in layers.partial}
    place, on = ("", "0") if layers is None else (", draft on the card", "all")
    found |= {f"{how}{place}": f"-ngl 0 -ngld {on} --schedule {how}" for how in ("sync", CONCURRENT)}
    if layers is not None:
        n = layers.with_draft
        found[f"{CONCURRENT}, draft and {n} layers on the card"] = f"-ngl {n} -ngld all --schedule {CONCURRENT}"
    return [duo(setup, name, f"-md {{draft}} {ALONE} {options}") for name, options in found.items()]


def show_commands(options: argparse.Namespace) -> int:
    """Print the commands, with placeholders in capitals for values that need the models."""
    setup = Setup(
        "", Path("TARGET"), Path("DRAFT"), (), 0, options.n_tokens or 128, options.duo, Path(), (), Path(), ExitStack()
    )
    writers = [way.writer for way in contestants(setup, None if options.cpu else Layers(("N",), "M"))]
    commands = [writer.command(setup.job) for writer in writers if isinstance(writer, Duo)]
    for command in ([*options.duo, "doctor", "--json"], *commands):
        print(shlex.join(command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
