"""Damaged profiles, caches and statistics: none changes a text or ends a run; each counts as none, or is said.

Bytes are flipped, cut and inserted, and valid documents are changed in their structure.
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
from tests.fuzz.cases import batches, dice
from tests.gguf_files import tiny_llama

MACHINE = Machine([0.1, 0.11, 0.12, 0.13, 0.2], 0.02, [0.12, 0.13, 0.14, 0.15, 0.25], 0.03)
KEY = Key((), ("CPU",), 2, (), ())
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-320, 1e-9, 1e-7, 1e5, 1e9, 1e308, -1e308, float("nan"), float("inf"),
    2**31, 2**63, 10**400, "", "1", "x", "nan", "٣", "\ud800", [], {}, [1], [[1, 1]], {"1": [0.1, 0]}, {"": None},
)  # fmt: skip


def changed(draw: Random, value: Any) -> Any:
    """The document with a change somewhere inside."""
    is_object = isinstance(value, dict)
    if not (is_object or isinstance(value, list)) or not value or draw.random() < 0.1:
        return other(draw, value)
    key: Any = draw.choice(list(value) if is_object else range(len(value)))
    what = draw.random()
    if what < 0.1:
        del value[key]
    elif what < 0.2 and is_object:
        value[draw.choice(("", "x", "0", "-1", "1" * 30, "9" * 5000, "1.5", "٣", "target_s"))] = value[key]
    elif what < 0.2:
        value.extend(value * draw.choice((1, 100)))
    else:
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


def damaged(draw: Random, data: bytes) -> bytes:
    """Some bytes flipped, cut, inserted or repeated, or only random ones."""
    at, size = draw.randrange(len(data)), draw.choice((1, 1, 7, 300))
    noise = draw.randbytes(size)
    return draw.choice((
        noise * draw.choice((1, 1000)),
        data[:at],
        draw.choice((b"[", b'{"":', b"[[1],", b'"', b"9", b"\\u0000")) * draw.choice((9, 100_000)),
        data[:at] + data[at + size :],
        data[:at] + noise + data[at:],
        data[:at] + noise + data[at + size :],
    ))  # fmt: skip


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
    return damaged(draw, json.dumps(document).encode())


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path))


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """What a run and a tuning have learned."""
    policy = Policy(4, 8)
    replay(policy, MACHINE, constant(0.8), 500)
    return {"policy": policy.state(), "threads": {"target": 1, "draft": 1, "concurrent": [1, 1]}}


@batches(2000)
def test_a_policy_and_threads_from_a_damaged_profile(learned: Any, numbers: range) -> None:
    """They are those without a profile, or work: forecasts are finite, and what is saved can be read again."""
    threads = plan_threads(EngineConfig(), drafting=True)
    for draw in map(dice, numbers):
        profile = Profile(KEY)
        profile.save(learned)
        profile.path.write_bytes(variant(draw, json.loads(profile.path.read_text())))
        kept = profile.load()
        tuned = tuned_threads(threads, EngineConfig(), kept)
        assert tuned == threads or kept_threads(kept)
        policy = Policy(4, 8)
        policy.restore_kept(kept.get("policy"))
        policy.begin(3, mode="greedy")
        assert all(0 < rate < 1e12 for rate in policy.rates().values())
        replayed = replay(policy, MACHINE, constant(0.7), 40)
        assert 0 < replayed.rate < 1e12
        json.dumps(asdict(policy.statistics()), allow_nan=False)
        profile.save({"policy": json.loads(json.dumps(policy.state(), allow_nan=False))} | kept_threads(kept))
        again = Policy(4, 8)
        again.restore_kept(profile.load()["policy"])
        kept_s, now_s = (each.state()["costs"]["0"][0]["target_s"] for each in (again, policy))
        assert kept_s.keys() == now_s.keys()


@batches(2000)
def test_damaged_profiles_are_listed_and_shown(learned: dict[str, Any], numbers: range) -> None:
    """Each is a row of printable text, be it only that it is damaged."""
    model = {"path": "/models/a.gguf", "bytes": 10**9, "gpu_layers": -1, "devices": None, "servers": []}
    key: Any = {"models": [model, model | {"devices": []}], "devices": ["CPU"], "cores": 2}
    key |= {"llama": ["1", "b1", "CPU", "AVX = 1"], "options": [4, None]}
    profile = Profile(msgspec.convert(key, Key))
    profile.save({"policy": learned["policy"]})
    good = json.loads(profile.path.read_text())
    for draw in map(dice, numbers):
        other_key = json.dumps(good | {"for": mutated(draw, good["for"])}).encode()
        profile.path.write_bytes(other_key if draw.random() < 0.7 else variant(draw, good))
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


@batches(100, 10)
def test_the_text_of_a_run_with_a_damaged_profile(pair: tuple[Path, Path], tmp_path: Path, numbers: range) -> None:
    """It is that without a profile, and the run leaves a valid one."""
    expected = text_of(pair)
    (path,) = (tmp_path / "profiles").glob("target+draft*")
    good = path.read_bytes()
    for draw in map(dice, numbers):
        path.write_bytes(variant(draw, json.loads(good)))
        assert text_of(pair) == expected
        document = json.loads(path.read_bytes())
        assert document["for"] == json.loads(good)["for"]
        Policy(16, 32).restore(document["policy"])


@batches(2000)
def test_damaged_statistics_for_plan(tmp_path: Path, numbers: range, capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted from, or refused."""
    curve, path = [100.0 + i for i in range(17)], tmp_path / "run.json"
    policy = {
        "curve_ms": {"alone": curve, "concurrent": curve},
        "draft_ms": {"alone": 10.0, "concurrent": 12.0},
        "pair_ms": 13.0,
        "measured": {"alone": [1, 4], "concurrent": []},
    }
    for draw in map(dice, numbers):
        path.write_bytes(variant(draw, {"policy": {**policy, "acceptance": 0.7}}))
        said = ""
        try:
            plan(PlanOptions(stats=path))
        except duo.DuoError as error:
            said = str(error)
        assert "\n" not in said
        assert "nan" not in capsys.readouterr().out


@batches(2000)
def test_a_damaged_cache_of_the_hub(tmp_path: Path, numbers: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference to a commit leads to this snapshot, or nowhere."""
    folder = tmp_path / "models--user--repo"
    model = folder / "snapshots" / ("a" * 40) / "model-Q4_K_M.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF")
    (tmp_path / "other-Q4_K_M.gguf").write_bytes(b"GGUF")
    (folder / "refs").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for draw in map(dice, numbers):
        other = draw.choice((b"", b".", b"..", b"../..", b"/", b"a\0", b"\xff", b"a" * 5000, b"*", b"a/../.."))
        (folder / "refs" / "main").write_bytes(draw.choice((other, damaged(draw, b"a" * 40))))
        with suppress(DownloadError):
            assert resolve_hub("user/repo", offline=True) == model
