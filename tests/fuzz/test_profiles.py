"""Damaged profiles, caches and statistics: none changes a text or ends a run; each counts as none, or is said.

Bytes are changed, and valid documents are changed in their structure.
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given

import duo
from benchmarks.virtual import constant, replay
from duo.cli.commands.plan import plan
from duo.cli.commands.saved_profiles import describe, table
from duo.cli.options.by_command import PlanOptions
from duo.config import EngineConfig
from duo.engine.cores import plan_threads, tuned_threads
from duo.errors import DownloadError
from duo.models.hub import resolve_hub
from duo.models.profiles import Key, Profile, kept_threads, saved_profiles
from duo.spec.pair import Machine
from duo.spec.policy import Policy
from tests.fuzz.cases import cases, damaged, dice
from tests.gguf_files import tiny_llama

MACHINE = Machine([0.1, 0.11, 0.12, 0.13, 0.2], 0.02, [0.12, 0.13, 0.14, 0.15, 0.25], 0.03)
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-320, 1e-9, 1e-7, 1e5, 1e9, 1e308, -1e308, float("nan"), float("inf"),
    2**31, 2**63, 10**400, "", "1", "x", "nan", "٣", "\ud800", [], {}, [1], [[1, 1]], {"1": [0.1, 0]}, {"": None},
)  # fmt: skip
NAMES = ("", "x", "0", "-1", "1" * 30, "9" * 5000, "1.5", "٣", "target_s")
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


def mutated(draw: Random, document: Any) -> Any:
    """A copy with one to three changes."""
    document = copy.deepcopy(document)
    for _ in range(draw.randint(1, 3)):
        document = changed(draw, document)
    return document


def variant(draw: Random, document: Any) -> bytes:
    """The document in JSON, damaged in its structure or its bytes."""
    if draw.random() < 0.6:
        return json.dumps(mutated(draw, document)).encode()
    return damaged(draw, json.dumps(document).encode(), PIECES)


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path))


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """What a run and a tuning have learned."""
    policy = Policy(4, 8)
    replay(policy, MACHINE, constant(0.8), 500)
    return {"policy": policy.state(), "threads": {"target": 1, "draft": 1, "concurrent": [1, 1]}}


@cases(2000)
@given(draw=dice)
def test_a_policy_and_threads_from_a_damaged_profile(learned: Any, draw: Random) -> None:
    """They are those without a profile, or work: forecasts are finite, and what is saved can be read again."""
    threads, profile = plan_threads(EngineConfig(), drafting=True), Profile(Key((), ("CPU",), 2, (), ()))
    profile.save(learned)
    profile.path.write_bytes(variant(draw, json.loads(profile.path.read_text())))
    kept = profile.load()
    assert tuned_threads(threads, EngineConfig(), kept) == threads or kept_threads(kept)
    policy, again = Policy(4, 8), Policy(4, 8)
    policy.restore_kept(kept.get("policy"))
    policy.begin(3, mode="greedy")
    assert all(0 < rate < 1e12 for rate in policy.rates().values())
    assert 0 < replay(policy, MACHINE, constant(0.7), 40).rate < 1e12
    json.dumps(asdict(policy.statistics()), allow_nan=False)
    profile.save({"policy": json.loads(json.dumps(policy.state(), allow_nan=False))} | kept_threads(kept))
    again.restore_kept(profile.load()["policy"])
    kept_s, now_s = (each.state()["costs"]["0"][0]["target_s"] for each in (again, policy))
    assert kept_s.keys() == now_s.keys()


@cases(2000)
@given(draw=dice)
def test_damaged_profiles_are_listed_and_shown(learned: dict[str, Any], draw: Random) -> None:
    """Each is a row of printable text, be it only that it is damaged."""
    model = {"path": "/models/a.gguf", "bytes": 10**9, "gpu_layers": -1, "devices": None, "servers": []}
    key: Any = {"models": [model, model | {"devices": []}], "devices": ["CPU"], "cores": 2}
    key |= {"llama": ["1", "b1", "CPU", "AVX = 1"], "options": [4, None]}
    profile = Profile(msgspec.convert(key, Key))
    profile.path.unlink(missing_ok=True)
    profile.save({"policy": learned["policy"]})
    good = json.loads(profile.path.read_text())
    of_another = json.dumps(good | {"for": mutated(draw, good["for"])}).encode()
    profile.path.write_bytes(of_another if draw.random() < 0.7 else variant(draw, good))
    (saved,) = saved_profiles()
    for line in (saved.name, *table([saved]), *describe(saved)):
        assert line.isprintable()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_llama(folder / "target.gguf", depth=0.3), tiny_llama(folder / "draft.gguf", depth=0.1)


def text_of(pair: tuple[Path, Path]) -> str:
    with duo.load(*pair, exact=True, n_threads_batch=1) as engine:
        return engine.generate("the cat", max_tokens=24, ignore_eos=True).text


def test_the_text_of_a_run_with_a_damaged_profile(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """It is that without a profile, and the run leaves a valid one."""
    expected = text_of(pair)
    (path,) = (tmp_path / "profiles").glob("target+draft*")
    good = json.loads(path.read_bytes())

    @cases(100)
    @given(draw=dice)
    def run(draw: Random) -> None:
        path.write_bytes(variant(draw, good))
        assert text_of(pair) == expected
        document = json.loads(path.read_bytes())
        assert document["for"] == good["for"]
        Policy(16, 32).restore(document["policy"])

    run()


@cases(2000)
@given(draw=dice)
def test_damaged_statistics_for_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], draw: Random) -> None:
    """Predicted from, or refused."""
    curve, path = [100.0 + i for i in range(17)], tmp_path / "run.json"
    policy = {
        "curve_ms": {"alone": curve, "concurrent": curve},
        "draft_ms": {"alone": 10.0, "concurrent": 12.0},
        "pair_ms": 13.0,
        "measured": {"alone": [1, 4], "concurrent": []},
        "acceptance": 0.7,
    }
    path.write_bytes(variant(draw, {"policy": policy}))
    said = ""
    try:
        plan(PlanOptions(stats=path))
    except duo.DuoError as error:
        said = str(error)
    assert "\n" not in said
    assert "nan" not in capsys.readouterr().out


@cases(2000)
@given(draw=dice)
def test_a_damaged_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: Random) -> None:
    """The reference to a commit leads to this snapshot, or nowhere."""
    folder = tmp_path / "models--user--repo"
    model = folder / "snapshots" / ("a" * 40) / "model-Q4_K_M.gguf"
    for path in (model, tmp_path / "other-Q4_K_M.gguf", folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    odd = draw.choice((b"", b".", b"..", b"../..", b"/", b"a\0", b"\xff", b"a" * 5000, b"*", b"a/../.."))
    path.write_bytes(draw.choice((odd, damaged(draw, b"a" * 40))))
    with suppress(DownloadError):
        assert resolve_hub("user/repo", offline=True) == model
