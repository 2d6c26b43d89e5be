"""Profiles: a run begins with what earlier runs of the same pair have learned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duo.config import AUTO_DRAFT
from duo.spec.policy import Policy
from tests.command import ONE_EACH, Argument
from tests.unit.cli.runner import duo

SHORT = ("-p", "the cat", "--ignore-eos")


class Home:
    """A config directory, and runs of a pair of tiny models that use it."""

    def __init__(self, tiny: Path, path: Path) -> None:
        self._pair, self._json, self.config = ("-m", tiny, "-md", tiny), path / "run.json", path / "config"

    def run(self, *arguments: Argument, n: int = 24) -> Any:
        """What the policy has learned and known."""
        options = (*SHORT, "-n", str(n), *ONE_EACH, "--json", self._json, *arguments)
        run = duo(*self._pair, *options, env={"DUO_CONFIG": str(self.config)})
        assert (run.status, run.warnings) == (0, []), run.stderr
        return json.loads(self._json.read_text()).get("policy")

    @property
    def profile(self) -> Path:
        """That of the pair; the target has one of its own."""
        (path,) = (path for path in self.config.rglob("*+*") if path.is_file())
        return path

    def write(self, content: bytes) -> None:
        """Make this the profile of the pair, and remove that of the target, whose times would be used."""
        pair = self.profile
        for path in self.config.rglob("*.json"):
            path.unlink()
        pair.write_bytes(content)


@pytest.fixture(autouse=True)
def one_core(set_cores: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core the schedules to choose from are sync and off. No other program computes."""
    set_cores(1)
    monkeypatch.setattr("duo.engine.profile.other_cpu_use", lambda _: 0.0)


@pytest.fixture
def home(tiny: Path, tmp_path: Path) -> Home:
    return Home(tiny, tmp_path)


@pytest.fixture
def used(home: Home) -> Home:
    home.run()
    return home


def learned(target_s: float, draft_s: float) -> dict[str, Any]:
    """What a run would keep that measured these times."""
    policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)
    policy.begin(0, mode="greedy")
    for costs in (policy.alone, policy.concurrent):
        for n in range(1, AUTO_DRAFT + 2):
            costs.add_target(n, target_s)
        costs.add_draft(draft_s)
    return dict(policy.state())


@pytest.mark.parametrize(("draft_s", "helps"), [(60.0, False), (1e-6, True)])
def test_the_next_run_begins_with_what_was_learned(used: Home, draft_s: float, helps: bool) -> None:
    """A prefill alone teaches nothing: all that is known is from the profile."""
    used.write(json.dumps(json.loads(used.profile.read_text()) | {"policy": learned(0.1, draft_s)}).encode())
    policy = used.run(n=1)
    assert policy["draft_ms"]["alone"] == pytest.approx(1000 * draft_s)
    assert policy["curve_ms"]["alone"] == pytest.approx([100.0] * 17)
    rates = policy["forecast_tokens_per_s"]
    assert (rates["sync"] > rates["off"]) == helps


@pytest.mark.parametrize("options", [["--no-profile"], ["--draft", "0"]])
def test_a_run_that_keeps_nothing_creates_no_directory(home: Home, options: list[str]) -> None:
    home.run(*options)
    assert not home.config.exists()


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"for": 7, "policy": 7}'])
def test_a_damaged_file_is_ignored_and_replaced(used: Home, content: bytes) -> None:
    used.write(content)
    assert used.run()["alone_ms"]["earlier_runs"] is None, "it began afresh"
    assert set(json.loads(used.profile.read_text())) == {"for", "policy"}


@pytest.mark.parametrize("place", ["{}/file", "{}/file/config", "relative"])
def test_a_config_directory_that_cannot_be_written(tiny: Path, tmp_path: Path, place: str) -> None:
    arguments = ("-m", tiny, "-md", tiny, *SHORT, "-n", "8", *ONE_EACH)
    (tmp_path / "file").write_text("a file")
    env = {"DUO_CONFIG": place.format(tmp_path)}
    run = duo(*arguments, env=env)
    assert (run.status, run.n_tokens, run.stdout) == (0, 8, duo(*arguments).stdout)
    (warning,) = run.warnings
    assert "profile" in warning
    assert duo(*arguments, "--no-profile", env=env).warnings == []


def test_what_was_learned_without_a_draft_is_kept_too(tiny: Path, tmp_path: Path) -> None:
    env, report = {"DUO_CONFIG": str(tmp_path / "config")}, tmp_path / "run.json"
    options = ("-m", tiny, *SHORT, "-n", "24", *ONE_EACH, "--json", report)
    assert duo(*options, "--lookup", "off", env=env).status == 0
    assert not list(tmp_path.rglob("profiles/*")), "there was nothing to learn"
    earlier = []
    for _ in range(2):
        assert duo(*options, env=env).status == 0
        earlier.append(json.loads(report.read_text())["policy"]["alone_ms"]["earlier_runs"])
    assert earlier[0] is None
    assert earlier[1] > 0
    assert len(list(tmp_path.rglob("profiles/*"))) == 1
