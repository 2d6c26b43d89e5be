"""Damaged profiles: none ends a run; each counts as none, or is of use. Bytes are changed, and the structure."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given

from benchmarks.virtual import constant, replay
from duo.cli.commands.saved_profiles import describe, table
from duo.config import EngineConfig
from duo.engine.cores import plan_threads, tuned_threads
from duo.models.profiles import Profile, kept_threads, saved_profiles
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.machine import Machine
from duo.speculation.report import report
from tests.fuzz.cases import cases, damaged, dice
from tests.unit.models.test_profiles import KEY

MACHINE = Machine([0.1, 0.11, 0.12, 0.13, 0.2], 0.02, [0.12, 0.13, 0.14, 0.15, 0.25], 0.03)
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-320, 1e-9, 1e-7, 1e5, 1e9, 1e308, -1e308, float("nan"), float("inf"),
    2**31, 2**63, 10**400, "", "1", "x", "nan", "٣", "\ud800", [], {}, [1], [[1, 1]], {"1": [0.1, 0]}, {"": None},
)  # fmt: skip
NAMES = ("", "x", "0", "-1", "1" * 30, "9" * 5000, "1.5", "٣", "by_threads")
PIECES = tuple(one * n for one in (b"[", b'{"":', b"[[1],", b'"', b"9", b"\\u0000") for n in (9, 100_000))


def changed(draw: Random, value: Any) -> Any:
    """The document with a change somewhere inside."""
    if not value or type(value) not in (dict, list) or draw.random() < 0.1:
        return other(draw, value)
    key: Any = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    match draw.randrange(10):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            value[draw.choice(NAMES)] = value[key]
        case 1:
            value.extend(value * draw.choice((1, 100)))
        case _:
            value[key] = changed(draw, value[key])
    return value


def other(draw: Random, value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) < 1e300 and draw.random() < 0.3:
        return value * draw.choice((-1, 1e-12, 1e-6, 1e6, 1e12))
    if draw.random() < 0.1:
        for _ in range(draw.choice((3, 60, 300))):
            value = [value]
        return value
    return copy.deepcopy(draw.choice(JUNK))


def variant(draw: Random, data: bytes) -> bytes:
    """The document in JSON, damaged in its structure or its bytes."""
    if draw.random() < 0.4:
        return damaged(draw, data, PIECES)
    document = json.loads(data)
    for _ in range(draw.randint(1, 3)):
        document = changed(draw, document)
    return json.dumps(document).encode()


def begun() -> tuple[Controller, DraftEstimates]:
    controller = Controller()
    return controller, DraftEstimates(controller.target, 4, 8)


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """What a run and a tuning have learned."""
    controller, draft = made = begun()
    replay(*made, MACHINE, constant(0.8), 500)
    return {
        "target": controller.target.state(),
        "draft": draft.state(),
        "threads": {"target": 1, "draft": 1, "concurrent": [1, 1]},
    }


@cases(2000)
@given(draw=dice)
def test_a_damaged_profile(learned: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, draw: Random) -> None:
    """It can be listed, forecasts are finite, and what is saved can be read again."""
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path))
    threads, profile = plan_threads(EngineConfig(), drafting=True), Profile(KEY)
    profile.path.unlink(missing_ok=True)
    profile.save(learned)
    profile.path.write_bytes(variant(draw, profile.path.read_bytes()))
    (saved,) = saved_profiles()
    for line in (saved.name, *table([saved]), *describe(saved, [saved])):
        assert line.isprintable()
    kept = profile.load()
    assert tuned_threads(threads, EngineConfig(), kept) == threads or kept_threads(kept)
    (controller, draft), (again, same) = begun(), begun()
    if "target" in kept:
        controller.target.restore(kept["target"])
    if "draft" in kept:
        draft.restore(kept["draft"])
    controller.begin([draft], 3, sampling="greedy")
    assert all(0 < rate < 1e12 for rate in controller.prospects.rates().values())
    assert 0 < replay(controller, draft, MACHINE, constant(0.7), 40).rate < 1e12
    json.dumps(asdict(report(controller)), allow_nan=False)
    states: Any = json.loads(json.dumps({"target": controller.target.state(), "draft": draft.state()}, allow_nan=False))
    profile.save(states | kept_threads(kept))
    assert again.target.restore(profile.load()["target"])
    assert same.restore(profile.load()["draft"])
    assert (again.target.state()["costs"].keys(), same.state()["beside"].keys()) == (
        states["target"]["costs"].keys(), states["draft"]["beside"].keys()
    )  # fmt: skip
