"""The cases of benchmarks/regret.py: pairs on machines, with recorded and with synthetic texts, and random machines."""

from __future__ import annotations

import json
import math
import random
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.oracle import N_MAX, Case, Text
from duo.diagnose.prospects import Pair, read_machine
from duo.speculation.acceptance import Acceptance
from duo.speculation.machine import Machine

FOLDER = Path(__file__).parent / "machines"
LETTERS = "abcdefghi"  # of the bins of confidence in a trace
_GAPS = [(low + high) / 2 for low, high in zip((0.0, *Acceptance.EDGES), (*Acceptance.EDGES, 8.0), strict=True)]

N_TEXTS, N_TOKENS = 5, 256  # of a case
ACCEPTANCES = (None, 0.3, 0.5, 0.7, 0.85, 0.95)  # of texts; None: as recorded
DRAFTS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # t_d / T(1)
TWO_TOKENS = 1.2  # the draft's time for two tokens in one decode, relative to one: where t_d dominates
_TWO_TOKENS = (1.0, 1.9)  # range of the same
_BLOCK = 8  # predictions of a recorded text that stay together in a synthetic one
_LEAST_BLOCKS = 100  # effective number of different blocks in synthetic texts, if possible
_STEEPEST = 20.0  # tilt at which only the most extreme blocks remain

# What another token in a batch adds, relative to T(1).
RISES: list[Callable[[random.Random], float]] = [
    lambda dice: dice.uniform(0, 0.03),  # flat
    lambda dice: dice.uniform(0.02, 0.3),  # linear
    lambda dice: dice.choice([0, 0, 0, dice.uniform(0.3, 1)]),  # cliffs
    lambda dice: dice.uniform(-0.3, 0.5),  # dips
    lambda dice: dice.uniform(0, 0.4) * dice.random(),  # any
]

_Value = TypeVar("_Value")


@cache
def texts(name: str) -> tuple[Text, ...]:
    """The recorded texts of a pair: see benchmarks/traces.py."""
    document = json.loads((FOLDER / "traces" / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(tuple((_GAPS[LETTERS.index(c.lower())], c.isupper()) for c in text) for text in document.values())


def successive(name: str, first: int) -> tuple[Text, ...]:
    """N_TEXTS recorded texts from number `first` on; if there are fewer, the same again from their middle."""
    recorded, found = texts(name), []
    for i in range(N_TEXTS):
        text = recorded[(first + i) % len(recorded)]
        start = len(text) // 2 if i >= len(recorded) else 0
        found.append(text[start:] + text[:start])
    return tuple(found)


def tilted(source: tuple[Text, ...], acceptance: float, n_tokens: int, seed: int) -> Text:
    """A text of this mean acceptance: blocks of `source`, drawn with weights exponential in their right predictions.

    If too few of its blocks would do, those of all recorded texts are drawn from.
    """
    dice, (blocks, weights) = random.Random(seed), _weighted(source, acceptance)
    drawn = dice.choices(blocks, weights, k=math.ceil(n_tokens / _BLOCK))
    return tuple(candidate for block in drawn for candidate in block)[:n_tokens]


@cache
def _weighted(source: tuple[Text, ...], acceptance: float) -> tuple[list[Text], list[float]]:
    blocks = _blocks(source)
    if len(blocks) >= _LEAST_BLOCKS:
        weights = _weights(blocks, acceptance)
        if 1 / sum(weight**2 for weight in weights) >= _LEAST_BLOCKS:
            return blocks, weights
    blocks = _blocks([text for path in sorted((FOLDER / "traces").glob("*.json")) for text in texts(path.stem)])
    return blocks, _weights(blocks, acceptance)


def _blocks(source: Sequence[Text]) -> list[Text]:
    return [text[i : i + _BLOCK] for text in source for i in range(len(text) - _BLOCK + 1)]


def _weights(blocks: Sequence[Text], acceptance: float) -> list[float]:
    """Probabilities of the blocks, exp(θ·right ones) with the θ that leads to `acceptance`, by bisection."""
    right = np.array([sum(is_right for _, is_right in block) for block in blocks])
    low, high = -_STEEPEST, _STEEPEST
    for _ in range(50):
        tilt = (low + high) / 2
        weights = np.exp(tilt * (right - _BLOCK / 2))
        weights /= weights.sum()
        low, high = (low, tilt) if (weights * right).sum() / _BLOCK > acceptance else (tilt, high)
    return [float(weight) for weight in weights]


def machine_name(text: str) -> str:
    """The type of an argument. Raises ArgumentTypeError if there is no file of the machine."""
    if text not in {path.stem for path in FOLDER.glob("*.json")}:
        raise ArgumentTypeError(f"no file {FOLDER.name}/{text}.json")
    return text


def pairs(machines: Sequence[str] = ()) -> list[tuple[str, Pair]]:
    """All pairs with recorded texts on the named machines, or on all, with their names: machine/pair."""
    files = [path for path in sorted(FOLDER.glob("*.json")) if not machines or path.stem in machines]
    return [(f"{path.stem}/{p.name}", p) for path in files for p in read_machine(path, N_MAX).values() if p.traces]


def with_draft(machine: Machine, ratio: float) -> Machine:
    """A draft with t_d = `ratio`·T(1); its other times in proportion."""
    factor = ratio * machine.target_s[0] / machine.draft_s
    names = ("draft_s", "concurrent_draft_s", "read_s", "pair_s")
    times: dict[str, Any] = {name: factor * getattr(machine, name) for name in names}
    return replace(machine, **times, branch_s=[factor * seconds for seconds in machine.branch_s])


def scaled(machine: Machine, first: float, rest: float) -> Machine:
    """T(1) times `first`, T(n) for n > 1 times `rest`, in both conditions."""
    curves = (machine.target_s, machine.concurrent_target_s)
    alone, concurrent = ([first * curve[0], *(rest * seconds for seconds in curve[1:])] for curve in curves)
    return replace(machine, target_s=alone, concurrent_target_s=concurrent)


def slower(machine: Machine, factor: float) -> Machine:
    """All times of both models times `factor`."""
    return scaled(with_draft(machine, factor * machine.draft_s / machine.target_s[0]), factor, factor)


def random_machine(seed: int) -> tuple[Machine, float]:
    """Any curve, any draft, and an acceptance. A third have a device for each model."""
    dice = random.Random(seed)
    rise, target_s = dice.choice(RISES), [0.02]
    for _ in range(N_MAX):
        target_s.append(max(0.9 * target_s[0], target_s[-1] + target_s[0] * rise(dice)))
    draft_s = target_s[0] * math.exp(dice.uniform(math.log(DRAFTS[0]), math.log(DRAFTS[-1])))
    slower_target, slower_draft = (dice.uniform(1.0, 1.7), dice.uniform(1.0, 1.6)) if seed % 3 else (1.0, 1.0)
    beside_s = [slower_target * seconds for seconds in target_s]
    pair_s = draft_s * dice.uniform(*_TWO_TOKENS)
    return Machine(target_s, draft_s, beside_s, slower_draft * draft_s, draft_s / 5, pair_s), dice.uniform(0.3, 0.95)


def cases(n: int, machines: Sequence[str] = (), seed: int = 0) -> list[Case]:
    """About `n` cases: each pair as it was measured, and at least once with another draft and another acceptance.

    The other drafts and acceptances are a Latin hypercube: each value comes equally often, in random combinations.
    """
    found, dice, made = pairs(machines), random.Random(seed), list[Case]()
    for name, pair in found:
        machine = replace(pair.machine, pair_s=pair.machine.pair_s or TWO_TOKENS * pair.machine.draft_s)
        made.append(Case(name, machine, successive(pair.traces, seed), pair.separate_devices))
    n_others = max(n - len(found), len(found))
    columns = zip(
        _shuffled(found, n_others, dice),
        _shuffled(ACCEPTANCES, n_others, dice),
        _shuffled(DRAFTS, n_others, dice),
        _shuffled([float(ratio) for ratio in np.linspace(*_TWO_TOKENS, n_others)], n_others, dice),
        strict=True,
    )
    for i, ((name, pair), acceptance, draft, two) in enumerate(columns, 1000 * seed):
        machine = with_draft(pair.machine, draft)
        machine = replace(machine, pair_s=two * machine.draft_s)
        chosen = successive(pair.traces, i) if acceptance is None else tuple(
            tilted(texts(pair.traces), acceptance, N_TOKENS, N_TEXTS * i + k) for k in range(N_TEXTS)
        )  # fmt: skip
        made.append(Case(name, machine, chosen, pair.separate_devices, acceptance))
    return [replace(case, seed=i) for i, case in enumerate(made, 1000 * seed)]


def _shuffled(values: Sequence[_Value], n: int, dice: random.Random) -> list[_Value]:
    """`n` values in random order, each equally often."""
    found = [values[i % len(values)] for i in range(n)]
    dice.shuffle(found)
    return found
