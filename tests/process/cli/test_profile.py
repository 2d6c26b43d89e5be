"""What one run learns of a pair, the next one begins with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duo.config import AUTO_DRAFT, EngineConfig
from duo.engine.threads import tuned_threads
from duo.spec.policy import Policy
from tests.command import ONE_CORE, ONE_EACH, Argument, Run, duo
from tests.fakes import THREADS

SHORT = ("-p", "the cat", "--ignore-eos")


class Home:
    """A config directory, and runs of a pair of tiny models that use it."""

    def __init__(self, tiny: Path, path: Path) -> None:
        self._tiny = tiny
        self._path = path
        self.config = path / "config"

    def run(self, *arguments: Argument, n: int = 24, more: tuple[Argument, ...] = ONE_EACH) -> Run:
        options = ("-md", self._tiny, *SHORT, "-n", str(n), *more, *arguments)
        env = {"DUO_CONFIG": str(self.config)}
        return duo("-m", self._tiny, *options, "--json", self._path / "run.json", before=ONE_CORE, env=env)

    @property
    def report(self) -> Any:
        return json.loads((self._path / "run.json").read_text())

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.config.rglob("*") if path.is_file())

    @property
    def profile(self) -> Path:
        (path,) = self.files
        return path

    def change(self, **figures: Any) -> None:
        self.profile.write_text(json.dumps(json.loads(self.profile.read_text()) | figures))


@pytest.fixture
def home(tiny: Path, tmp_path: Path) -> Home:
    return Home(tiny, tmp_path)


@pytest.fixture
def used(home: Home) -> Home:
    assert home.run().warnings == []
    return home


def learned(target_s: float, draft_s: float) -> dict[str, Any]:
    """What a run would keep that found these times."""
    policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)
    policy.begin(0, mode="greedy")
    for costs in (policy.alone, policy.beside):
        for n in range(1, AUTO_DRAFT + 2):
            costs.add_target(n, target_s)
        costs.add_draft(draft_s)
    return policy.state()


def test_a_run_with_a_draft_keeps_one_file(used: Home) -> None:
    assert used.profile.parent == used.config / "profiles"
    assert used.run().status == 0
    assert len(used.files) == 1


@pytest.mark.parametrize(("draft_s", "helps"), [(60.0, False), (1e-6, True)])
def test_the_next_run_begins_with_what_was_learned(used: Home, draft_s: float, helps: bool) -> None:
    """A prompt alone teaches nothing: all that is known is what was kept."""
    used.change(policy=learned(0.1, draft_s))
    assert used.run(n=1).status == 0
    policy = used.report["policy"]
    assert policy["draft_ms"]["alone"] == pytest.approx(1000 * draft_s)
    assert policy["curve_ms"]["alone"] == pytest.approx([100.0] * 17)
    assert (policy["schedule"] != "off") == helps


def test_a_hopeless_draft_is_not_asked_again(used: Home) -> None:
    used.change(policy=learned(1e-4, 60.0))
    assert used.run().status == 0
    assert used.report["generation"]["tokens_by_schedule"] == {"off": 23}


def test_no_profile_neither_reads_nor_writes(used: Home) -> None:
    used.change(policy=learned(1e-4, 60.0))
    before = used.profile.read_bytes()
    run = used.run("--no-profile")
    assert (run.status, run.warnings) == (0, [])
    assert "sync" in used.report["generation"]["tokens_by_schedule"], "as without any profile"
    assert used.profile.read_bytes() == before


def test_no_profile_leaves_no_directory(home: Home) -> None:
    assert home.run("--no-profile").status == 0
    assert not home.config.exists()


@pytest.mark.parametrize("options", [["--draft", "0"], ["--list-devices"]])
def test_a_run_without_a_draft_keeps_nothing(home: Home, options: list[str]) -> None:
    assert home.run(*options).status == 0
    assert not home.config.exists()


@pytest.mark.parametrize("options", [["--exact"], ["-ctk", "f32"], ["-fa", "on"]])
def test_what_changes_the_cost_of_a_decode_has_a_profile_of_its_own(used: Home, options: list[str]) -> None:
    assert used.run(*options).status == 0
    assert len(used.files) == 2


def test_what_does_not_has_none(used: Home) -> None:
    assert used.run("--draft", "3", "-r", "zzz", "--schedule", "sync", n=9).status == 0
    assert len(used.files) == 1


# Damage


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"for": 7, "policy": 7}'])
def test_a_file_that_is_damaged_counts_as_none(used: Home, content: bytes) -> None:
    used.profile.write_bytes(content)
    run = used.run()
    assert (run.status, run.warnings) == (0, [])
    assert "sync" in used.report["generation"]["tokens_by_schedule"], "as without any profile"
    assert set(json.loads(used.profile.read_text())) == {"for", "policy"}, "and whole again"


def test_figures_that_are_damaged_count_as_none(home: Home) -> None:
    assert home.run(n=4, more=()).status == 0
    usual = home.report["threads"]
    home.change(policy=learned(1e-4, 60.0) | {"bias": {}}, threads={"target": 7, "draft": 1, "beside": [1]})
    run = home.run(n=4, more=())
    assert (run.status, run.warnings, run.n_tokens) == (0, [], 4)
    assert "sync" in home.report["generation"]["tokens_by_schedule"], "as without any profile"
    assert home.report["threads"] == usual
    assert set(json.loads(home.profile.read_text())["policy"]) == set(learned(1.0, 1.0)), "and whole again"


@pytest.mark.parametrize(
    "figures",
    [
        7,
        [],
        "x",
        {},
        {"alone": 7},
        {"alone": {"target_s": {"1": 0.1}, "draft_s": {}}},
        {"alone": {"target_s": {"1": [-0.1, 0]}, "draft_s": {}}},
        {"alone": {"target_s": {"0": [0.1, 0]}, "draft_s": {}}},
        {"alone": {"target_s": {"x": [0.1, 0]}, "draft_s": {}}},
        {"alone": {"target_s": {"1": [math.nan, 0]}, "draft_s": {}}},
        {"alone": {"target_s": {"1": [10**400, 0]}, "draft_s": {}}},
        {"alone": {"target_s": {"1": [0.1, -1]}, "draft_s": {}}},
        {"acceptance": 7},
        {"acceptance": []},
        {"acceptance": {"greedy": {}}},
        {"acceptance": {"greedy": {"edges": [], "accepted": [], "mean": 0.5}}},
        {"acceptance": {"edges": [], "accepted": [], "mean": 0.5}},
        {"bias": {"async": 1.0}},
        {"bias": {"async": "x", "sync": 1.0, "off": 1.0}},
        {"read_s": "x"},
        {"read_s": math.inf},
        {"read_s": -1.0},
    ],
)
def test_a_policy_that_is_damaged_is_not_restored(figures: Any) -> None:
    fresh, policy = Policy(4, 8), Policy(4, 8)
    whole = learned(1e-4, 60.0)
    policy.restore_kept(whole | figures if figures and isinstance(figures, dict) else figures)
    assert policy.state() == fresh.state()
    policy.restore_kept(whole)
    assert policy.state() != fresh.state()


@pytest.mark.parametrize("name", list(learned(1.0, 1.0)))
def test_a_policy_of_which_something_is_missing_is_not_restored(name: str) -> None:
    policy, part = Policy(4, 8), learned(1e-4, 60.0)
    del part[name]
    policy.restore_kept(part)
    assert policy.state() == Policy(4, 8).state()


@pytest.mark.parametrize(
    "threads",
    [
        None,
        7,
        [],
        "x",
        {"target": 1},
        {"target": "x", "draft": 1, "beside": [1, 1]},
        {"target": 0, "draft": 1, "beside": [1, 1]},
        {"target": 1, "draft": -1, "beside": [1, 1]},
        {"target": 1, "draft": 1, "beside": [1]},
        {"target": 1, "draft": 1, "beside": 7},
        {"target": 1, "draft": 1, "beside": [10**9, 1]},
        {"target": math.inf, "draft": 1, "beside": [1, 1]},
        {"target": math.nan, "draft": 1, "beside": [1, 1]},
    ],
)
def test_threads_that_are_damaged_are_not_taken(threads: Any) -> None:
    assert tuned_threads(THREADS, EngineConfig(), {"threads": threads}) == THREADS
    assert tuned_threads(THREADS, EngineConfig(), {}) == THREADS


def test_tuned_threads_are_taken_where_the_user_asks_for_none() -> None:
    kept = {"threads": {"target": 1, "draft": 1, "beside": [1, 1]}}
    tuned = tuned_threads(THREADS, EngineConfig(), kept)
    assert (tuned.target, tuned.draft, tuned.beside) == (1, (1,), (1, 1))
    assert tuned.target_batch == THREADS.target_batch
    for config in (EngineConfig(n_threads=2), EngineConfig(draft_n_threads=2)):
        assert tuned_threads(THREADS, config, kept) == THREADS


# Places where nothing can be kept


def _a_file(path: Path) -> str:
    path.write_text("a file")
    return str(path)


def _in_a_file(path: Path) -> str:
    return _a_file(path) + "/config"


def _relative(_: Path) -> str:
    return "relative"


@pytest.mark.parametrize("place", [_a_file, _in_a_file, _relative])
def test_a_directory_that_cannot_be_written_is_no_reason_to_stop(
    tiny: Path, tmp_path: Path, place: Callable[[Path], str]
) -> None:
    arguments = ("-m", tiny, "-md", tiny, *SHORT, "-n", "8", *ONE_EACH)
    env = {"DUO_CONFIG": place(tmp_path / "place")}
    run = duo(*arguments, env=env)
    assert (run.status, run.n_tokens, run.stdout) == (0, 8, duo(*arguments).stdout)
    assert len(run.warnings) == 1
    assert "kept" in run.warnings[0]
    assert duo(*arguments, "--no-profile", env=env).warnings == []
