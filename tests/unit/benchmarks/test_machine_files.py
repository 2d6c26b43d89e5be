"""The machines of benchmarks/machines: complete, with their sources, and slow enough to be emulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regret import FOLDER
from duo.bench.machines import Pair, read_machine

# What the models of the scenario two-devices take at most on two cores, a thread each, while the other one computes: ms
# for a target's batch of 1, 2, … tokens (SmolLM2 F32), and for a draft's token in each of 1, 2, … sequences (its Q4_0).
TARGET_MS = (25, 32, 33, 38, 43, 46, 51, 58, 58)
DRAFT_MS = (8, 15, 21, 20, 29, 33, 38, 28, 36)

FILES = sorted(FOLDER.glob("*.json"))


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in FILES]


def emulated() -> list[Any]:
    """The pairs of the scenario two-devices."""
    pairs = [pair for path in FILES for pair in read_machine(path).values() if pair.slow_down is not None]
    return [pytest.param(pair, id=f"{pair.machine_name}: {pair.name}") for pair in pairs]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_machine_is_complete(path: Path) -> None:
    for pair in read_machine(path).values():
        assert pair.machine_name
        assert pair.source
        assert 0 < pair.machine.noise < 0.5
        assert 0 <= pair.machine.spikes < 0.1
        assert pair.machine.read_s > 0
        assert pair.machine.pair_s == 0 or 1 <= pair.machine.pair_s / pair.machine.draft_s <= 2
        assert (FOLDER / "traces" / f"{pair.traces}.json").is_file()


def test_what_is_assumed_are_fields_of_the_pair() -> None:
    for name, machine in documents():
        for pair in machine["pairs"].values():
            assert [field for field in pair.get("assumed", []) if field not in pair] == [], name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_more_tokens_and_more_sequences_never_take_less(path: Path) -> None:
    """Of those that are emulated: measured curves have dips."""
    for pair in read_machine(path).values():
        if pair.slow_down is not None:
            curves = (pair.machine.target_s, pair.machine.beside_target_s, pair.draft_alone_s, pair.draft_beside_s)
            assert [curve for curve in curves if list(curve) != sorted(curve)] == []


def test_nothing_is_faster_beside_the_other_model() -> None:
    for path in FILES:
        for pair in read_machine(path).values():
            if pair.slow_down is not None:
                assert all(a <= b for a, b in zip(pair.machine.target_s, pair.machine.beside_target_s, strict=True))
                assert all(a <= b for a, b in zip(pair.draft_alone_s, pair.draft_beside_s, strict=True))


def test_the_scenario_has_every_kind_of_two_devices() -> None:
    pairs = [param.values[0] for param in emulated()]
    assert any(pair.delay_s for pair in pairs)
    assert any(not pair.apart for pair in pairs)
    assert {pair.aborts for pair in pairs} == {True, False}


@pytest.mark.parametrize("pair", emulated())
def test_the_real_models_are_faster_than_the_emulated_ones(pair: Pair) -> None:
    """`slow_down` is large enough: a decode that takes longer than the emulated one spoils a run."""
    assert pair.slow_down is not None
    target_ms = [1000 * pair.slow_down * seconds for seconds in pair.machine.target_s]
    draft_ms = [1000 * pair.slow_down * seconds for seconds in pair.draft_beside_s]
    n_sequences = 1 if pair.delay_s else len(DRAFT_MS)  # remote drafts have one
    assert [n for n, most in enumerate(TARGET_MS, 1) if target_ms[n - 1] < most] == []
    assert [n for n, most in enumerate(DRAFT_MS[:n_sequences], 1) if draft_ms[n - 1] < most] == []
