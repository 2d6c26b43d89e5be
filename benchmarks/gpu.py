"""Placements of target and draft: on the CPU, on the GPU, or one on each. benchmarks/gpu.sh builds duo for it first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks import PEERS
from benchmarks.contestants import ALONE, N_CTX, Setup, commands, duo, settings
from benchmarks.models import ON_A_CARD
from benchmarks.process import run_process
from benchmarks.runner import Bar, Comparison, Outcome, Verdict, note, verdict
from duo.bench.contestants import SPECULATIVE, Program
from duo.bench.rounds import Contestant, first_difference
from duo.config import ContextConfig, ModelConfig
from duo.engine.cores import usable_cores
from duo.errors import DuoError
from duo.llama.model import ModelSize, model_size

CPU, OFFLOAD, CONCURRENT, NO_BRANCHES = "CPU alone", "offload", "async", "async without branches"
CHOSEN = "no schedule given"
ON_CARD, BOTH_ON_CARD = "draft on the card", "draft and layers on the card"
AUTO_ALONE, COLD, WARM = "no options, target alone", "no options, first run", "no options, later runs"
SHARE = 0.3  # share of the targets ON_A_CARD that fits the card; the original's card held 24 GB of 75
MARGIN = 1 << 30  # bytes of GPU memory left for compute buffers
BARS = (
    Bar(CONCURRENT, OFFLOAD, 1.75), Bar(f"{CONCURRENT}, draft on", NO_BRANCHES, 0.97), Bar(COLD, AUTO_ALONE, 0.96),
    Bar(WARM, AUTO_ALONE, 0.98), Bar(f"{CONCURRENT}, {ON_CARD}", f"{SPECULATIVE}, {ON_CARD}", 1.0),
    Bar(f"{CONCURRENT}, {BOTH_ON_CARD}", f"{SPECULATIVE}, {BOTH_ON_CARD}", 1.0),
    Bar(f"{CHOSEN}, {ON_CARD}", f"{SPECULATIVE}, {ON_CARD}", 1.0),
    Bar(f"{CHOSEN}, {BOTH_ON_CARD}", f"{SPECULATIVE}, {BOTH_ON_CARD}", 1.0),
)  # fmt: skip


class Layers(NamedTuple):
    """Numbers of target layers on the GPU."""

    partial: Sequence[int]  # offloads without a draft
    with_draft: int  # that fit together with the draft


class Placements(Comparison):
    """The machine, identical texts with --exact, and the placements in rounds; without a card, those on the CPU."""

    def run(self, setup: Setup) -> Outcome:
        texts = exact(setup, layers(setup))
        compared = Comparison.run(self, setup)
        lines = ["```text", *doctor(setup).splitlines(), "```", "", *compared.lines]
        document = compared.document | {"installation": json.loads(doctor(setup, "--json"))}
        return Outcome(lines, document, [*compared.verdicts, *texts])


def doctor(setup: Setup, *options: str) -> str:
    """What `duo doctor` prints, in a process of its own, so that this one uses no GPU memory. Raises DuoError."""
    cost = run_process([*setup.duo, "doctor", *options])
    if cost.returncode not in (0, 1):
        raise DuoError(f"duo doctor exited with {cost.returncode}: {cost.stderr[-2000:]}")
    return cost.stdout


def layers(setup: Setup) -> Layers | None:
    """What fits the card; of the default pair, at most SHARE of the target. None without a card. Raises DuoError."""
    devices = json.loads(doctor(setup, "--json"))["build"]["devices"]
    free = [card["memory_free"] for card in devices if card["kind"] in ("GPU", "IGPU")]
    if not free:
        return None
    most = SHARE * setup.target.stat().st_size if setup.pair in ON_A_CARD else max(free)
    target, draft = (model_size(ModelConfig(path)) for path in (setup.target, setup.draft))
    return fit(target, draft, int(min(max(free) - MARGIN, most)))


def fit(target: ModelSize, draft: ModelSize, card: int) -> Layers:
    """The numbers of target layers, with their KV caches, that fit `card` bytes. Raises DuoError if the draft does not.

    Offloads are as many layers as fit, three quarters and half of them: more are not always faster.
    """
    n_layers, context = len(target.layers), ContextConfig(N_CTX, 1, 1)
    needed, draft_needed = (size.n_bytes + sum(size.cache_bytes(context)) for size in (target, draft))
    layer, left = needed / (n_layers + 1), card - draft_needed  # the output layer counts as one layer
    if left < 0:
        raise DuoError(f"the draft does not fit {card / 1e9:.2f} GB: use a smaller one")
    alone = min(int(card / layer), n_layers)
    return Layers(sorted({alone, alone * 3 // 4, alone // 2} - {0}), min(int(left / layer), n_layers))


def contestants(setup: Setup) -> list[Contestant]:
    """The placements to compare. One that fails is left out of the later rounds."""
    fitting = layers(setup)
    place, on = ("draft on the CPU", "0") if fitting is None else (ON_CARD, "all")
    placed, draft = {place: f"-ngl 0 -ngld {on}"}, f"-md {{draft}} -ngl 0 -ngld {on} {ALONE}"
    found = {CPU: f"-ngl 0 {ALONE}", f"{NO_BRANCHES}, {place}": f"{draft} --schedule async --branches 0"}
    auto = " -ngl 0 -ngld 0"
    if fitting is not None:
        auto = ""
        found |= {f"{OFFLOAD} {n}": f"-ngl {n} {ALONE}" for n in fitting.partial}
        placed[BOTH_ON_CARD] = f"-ngl {fitting.with_draft} -ngld all"
    for name, options in placed.items():
        own = f"-md {{draft}} {options} {ALONE}"
        found |= {f"{way}, {name}": f"{own} --schedule {way}" for way in ("sync", CONCURRENT)}
        found[f"{CHOSEN}, {name}"] = own
    found |= {AUTO_ALONE: f"{ALONE}{auto}", COLD: f"-md {{draft}} --no-profile{auto}", WARM: f"-md {{draft}}{auto}"}
    compared = [*commands(setup, found), *(each for name in placed for each in peers(setup, name, placed[name]))]
    return [replace(each, may_fail=each.name != CPU) for each in compared]


def peers(setup: Setup, name: str, options: str) -> list[Contestant]:
    """llama.cpp in turns. None without --peers: the default folder has programs for the CPU alone."""
    if setup.peers == PEERS.resolve():
        return []
    path, placed = setup.program(SPECULATIVE), ["-b", str(N_CTX), *options.split()]
    return [
        Contestant(f"{SPECULATIVE}, {name}, {each}", Program(SPECULATIVE, path, usable_cores(), [*placed, *more]))
        for each, more in settings().items()
        if each.startswith("draft n=")
    ]


def exact(setup: Setup, fitting: Layers | None) -> list[Verdict]:
    """With --exact, whether the text with the draft is the target's own. Raises DuoError."""
    file, found = Path(setup.prompt_files[-1]), []
    short = replace(setup, n_tokens=min(64, setup.n_tokens))
    for n in dict.fromkeys([0, 0 if fitting is None else fitting.with_draft]):
        options = f"-ngl {n} --exact --no-profile {ALONE}"
        drafted = f"{options} -md {{draft}} -ngld {'0' if fitting is None else 'all'} --schedule async"
        one, other = (short.write(duo(short, "exact", words), file) for words in (options, drafted))
        same = first_difference(other.text, one.text) is None
        note(f"--exact, {n} layers on the card: {'identical' if same else 'different'}")
        if n == 0:  # kernels of a card may differ
            found.append(verdict("text with --exact and the draft as without, target on the CPU", float(same), least=1))
    return found
