"""Profiles: a run begins with what earlier runs of the same pair have learned, which `duo tune` lists and forgets."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from duo.speculation.policy import Policy

from duo.config import AUTO_DRAFT
from duo.models.profiles import Key, Profile
from tests.command import ONE_EACH, Argument, Run, assert_refused
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


@pytest.mark.parametrize(("draft_s", "helps"), [(0.9, False), (1e-6, True)])
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


def test_half_a_character_ends_neither_a_run_nor_the_list(used: Home) -> None:
    document = json.loads(used.profile.read_text())
    used.write(json.dumps(document | {"threads": {"target": "\ud800"}}).encode())
    used.run(n=4)
    document["for"]["options"][0] = "\ud800"
    used.write(json.dumps(document).encode())
    run = duo("tune", "--list", env={"DUO_CONFIG": str(used.config)})
    assert (run.status, run.stderr) == (0, "")
    assert "-t ?" in run.text


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


# `duo tune --list` and `--reset`: what was learned, by names that can be read


Save = Callable[..., Profile]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Keeps the profile of models of these names, in a config directory of its own."""
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))

    def save(*names: str, when: int = 0, options: tuple[object, ...] = (None, None), **more: Any) -> Profile:
        model: dict[str, object] = {"gpu_layers": -1, "devices": None, "servers": []}
        key: Any = {
            "models": [
                model | {"path": f"/models/{name}", "bytes": 4_700_000_000 // 10**i} for i, name in enumerate(names)
            ],
            "devices": ["AMD EPYC"],
            "cores": 2,
            "llama": ["0.3.36", "b1", "CPU", "AVX = 1"],
            "options": list(options),
        }
        profile = Profile(msgspec.convert(key, Key))
        document: Any = {"policy": _learned().state(), **more}
        profile.save(document)
        os.utime(profile.path, (when, when))
        return profile

    return save


def _learned() -> Policy:
    """T(1) = 100 ms, T(5) = 110 ms, 10 ms for a token of the draft, of which 80 % are accepted."""
    policy = Policy(4, 8)
    policy.begin(0, mode="greedy")
    for n, seconds in ((1, 0.1), (5, 0.11)):
        for _ in range(6):
            policy.alone.add_target(n, seconds)
    policy.alone.add_draft(0.01, 1)
    policy.concurrent.add_draft(0.012)
    policy.learn_scores([(3.0, i % 5 != 0) for i in range(200)])
    policy.use_cores(1)
    policy.alone.add_target(1, 0.15)
    policy.use_cores(0)
    return policy


def tune(*arguments: str | Path) -> Run:
    return duo("tune", *arguments, env={"DUO_CONFIG": os.environ["DUO_CONFIG"], "TZ": "UTC"})


def test_the_list(save: Save) -> None:
    pair = save("large.gguf", "small.gguf", when=86_400)
    alone = save("large.gguf", when=0, options=(4, None))
    tuned = save("large.gguf", "tiny.gguf", when=2 * 86_400, threads={"target": 2, "draft": 1, "concurrent": [1, 1]})
    run = tune("--list")
    assert (run.status, run.stderr) == (0, "")
    head, *rows, empty, where = [" ".join(line.split()) for line in run.text.splitlines()]
    assert head == "changed size on threads ms/token draft accepted fastest profile"
    assert rows == [
        f"1970-01-03 00:00 4.7 GB + 470 MB CPU tuned 2/1 1+1 100.0 10.0 80 % sync {tuned.path.stem}",
        f"1970-01-02 00:00 4.7 GB + 470 MB CPU auto 100.0 10.0 80 % sync {pair.path.stem}",
        f"1970-01-01 00:00 4.7 GB CPU -t 4 100.0 10.0 80 % - {alone.path.stem}",
    ]
    assert (empty, where) == ("", f"ms/token of the target and of the draft; in {pair.path.parent}")


def test_one_profile_in_full(save: Save) -> None:
    save("large.gguf", "small.gguf")
    save("other.gguf", "small.gguf")
    run = tune("--list", "large")
    assert (run.status, run.stderr) == (0, "")
    for line in (
        "model     /models/large.gguf, 4.7 GB, CPU",
        "model     /models/small.gguf, 470 MB, CPU",
        "machine   AMD EPYC; 2 cores",
        "threads   auto",
        "times     T(1) = 100.0, T(5) = 110.0 ms alone",
        "times     T(1) = 150.0 ms alone, 1 of the cores free",
        "draft     10.0",
        "accepted  80 %",
    ):
        assert line in run.text.splitlines()
    assert "other" not in run.text


def test_reset_forgets_one_or_all(save: Save) -> None:
    first, second, third = (save(f"{name}.gguf", "small.gguf") for name in ("one", "two", "three"))
    target = save("one.gguf")
    run = tune("--reset", first.path.name, second.path.name)
    assert run.stderr.splitlines() == [f"duo: removed {each.path.stem}" for each in (first, target, second)]
    assert [each.path.exists() for each in (first, target, second, third)] == [False, False, False, True]
    assert tune("--reset", "all").status == 0
    assert tune("--list").text.startswith("no profiles in ")


def test_what_is_refused(save: Save) -> None:
    names = [save(f"{name}.gguf", "small.gguf").path for name in ("large", "larger")]
    for arguments, said in (
        (("--reset", "large"), f"'large' is in several names of a profile; there is: {names[0].stem}, {names[1].stem}"),
        (("--list", "lager"), f"'lager' is no name of a profile; there is: {names[1].stem}, {names[0].stem}"),
    ):
        assert_refused(tune(*arguments), said, status=2)
    assert all(path.exists() for path in names)
