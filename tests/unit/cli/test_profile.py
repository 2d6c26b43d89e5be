"""Profiles: a run begins with what earlier runs of the same pair have learned, which `duo tune` lists and forgets."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duo.cli.commands.saved_profiles import _place
from duo.config import AUTO_DRAFT
from duo.models.profiles import Key, KeyModel, Profile
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from tests.command import ONE_EACH, Argument, Run, assert_refused
from tests.unit.cli.runner import duo

SHORT = ("-p", "the cat", "--ignore-eos")


class Home:
    """A config directory, and runs of a pair of tiny models that use it."""

    def __init__(self, tiny: Path, path: Path) -> None:
        self._pair, self._json, self.config = ("-m", tiny, "-md", tiny), path / "run.json", path / "config"

    def run(self, *arguments: Argument, n: int = 24) -> Any:
        """What the controller has learned and known."""
        options = (*SHORT, "-n", str(n), *ONE_EACH, "--json", self._json, *arguments)
        run = duo(*self._pair, *options, env={"DUO_CONFIG": str(self.config)})
        assert (run.status, run.warnings) == (0, []), run.stderr
        return json.loads(self._json.read_text()).get("policy")

    @property
    def profile(self) -> Path:
        """That of the pair; the target has one of its own."""
        (path,) = (path for path in self.config.rglob("*+*") if path.is_file())
        return path

    @property
    def of_target(self) -> Path:
        """That of the target."""
        (path,) = (path for path in self.config.rglob("*.json") if "+" not in path.name)
        return path


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


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def learn(used: Home, target_s: float, draft_s: float) -> None:
    """Let the profiles be those of a run that measured these times."""
    controller = Controller()
    draft = DraftEstimates(controller.target, AUTO_DRAFT, 2 * AUTO_DRAFT, name="tiny")
    for target, own in ((controller.target.alone, draft.costs.alone), (draft.beside, draft.costs.concurrent)):
        for n in range(1, AUTO_DRAFT + 2):
            target.add(n, target_s)
        own.add(draft_s)
    change(used.of_target, target=controller.target.state())
    change(used.profile, draft=draft.state())


@pytest.mark.parametrize(("draft_s", "helps"), [(0.9, False), (1e-6, True)])
def test_the_next_run_begins_with_what_was_learned(used: Home, draft_s: float, helps: bool) -> None:
    """A prefill alone teaches nothing: all that is known is from the profile."""
    learn(used, 0.1, draft_s)
    policy = used.run(n=1)
    assert policy["draft_ms"]["alone"] == pytest.approx(1000 * draft_s)
    assert policy["curve_ms"]["alone"] == pytest.approx([100.0] * 17)
    rates = policy["forecast_tokens_per_s"]
    assert (rates["sync"] > rates["off"]) == helps


@pytest.mark.parametrize("options", [["--no-profile"], ["--draft", "0"]])
def test_a_run_that_keeps_nothing_creates_no_directory(home: Home, options: list[str]) -> None:
    home.run(*options)
    assert not home.config.exists()


def test_a_profile_of_an_earlier_version_is_not_misread(used: Home) -> None:
    """Its name is another one, but even under this name it is that of something else."""
    old = {"costs": {"0": [{"target_s": {"1": [9.9, 0.1]}, "draft_s": {"1": [0.1, 0.1]}}, {}]}, "read_s": 0.1}
    for path in (used.profile, used.of_target):
        document = json.loads(path.read_text())
        path.write_text(json.dumps({"for": document["for"] | {"version": 4}, "policy": old}))
    policy = used.run()
    assert policy["alone_ms"]["earlier_runs"] is None
    assert policy["curve_ms"]["alone"][0] < 1000


def test_half_a_character_ends_neither_a_run_nor_the_list(used: Home) -> None:
    change(used.profile, threads={"target": "\ud800"})
    used.run(n=4)
    document = json.loads(used.profile.read_text())
    document["for"]["options"][0] = "\ud800"
    used.profile.write_text(json.dumps(document))
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

    def save(*names: str, when: int = 0, options: tuple[object, ...] = 8 * (None,), **more: Any) -> Profile:
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
        controller, draft = _learned(Path(names[-1]).stem)
        document: Any = (
            {"draft": draft.state(), **more} if len(names) > 1 else {"target": controller.target.state(), **more}
        )
        profile.save(document)
        os.utime(profile.path, (when, when))
        return profile

    return save


def _learned(name: str) -> tuple[Controller, DraftEstimates]:
    """T(1) = 100 ms, T(5) = 110 ms, 10 ms for a token of the draft, of which 80 % are accepted."""
    controller = Controller()
    draft = DraftEstimates(controller.target, 4, 8, name=name)
    controller.begin([draft], 0, sampling="greedy")
    for n, seconds in ((1, 0.1), (5, 0.11)):
        for _ in range(6):
            controller.target.alone.add(n, seconds)
    draft.costs.alone.add(0.01)
    draft.costs.concurrent.add(0.012)
    draft.learn_scores([(3.0, i % 5 != 0) for i in range(200)])
    controller.use_cores(1)
    for _ in range(9):
        controller.target.alone.add(1, 0.15)
    controller.use_cores(0)
    return controller, draft


def tune(*arguments: str | Path) -> Run:
    return duo("tune", *arguments, env={"DUO_CONFIG": os.environ["DUO_CONFIG"], "TZ": "UTC"})


def test_the_list(save: Save) -> None:
    pair = save("large.gguf", "small.gguf", when=86_400)
    alone = save("large.gguf", when=0, options=(4, *7 * (None,)))
    auto = save("large.gguf", when=43_200)
    tuned = save("large.gguf", "tiny.gguf", when=2 * 86_400, threads={"target": 2, "draft": 1, "concurrent": [1, 1]})
    run = tune("--list")
    assert (run.status, run.stderr) == (0, "")
    head, *rows, empty, where = [" ".join(line.split()) for line in run.text.splitlines()]
    assert head == "changed size on threads ms/token draft accepted fastest profile"
    assert rows == [
        f"1970-01-03 00:00 4.7 GB + 470 MB CPU tuned 2/1 1+1 100.0 10.0 80 % sync {tuned.path.stem}",
        f"1970-01-02 00:00 4.7 GB + 470 MB CPU auto 100.0 10.0 80 % sync {pair.path.stem}",
        f"1970-01-01 12:00 4.7 GB CPU auto 100.0 - - - {auto.path.stem}",
        f"1970-01-01 00:00 4.7 GB CPU -t 4 100.0 - - - {alone.path.stem}",
    ]
    assert (empty, where) == ("", f"ms/token of the target and of the draft; in {pair.path.parent}")


def test_one_profile_in_full(save: Save) -> None:
    for names in (["large.gguf"], ["large.gguf", "small.gguf"], ["other.gguf", "small.gguf"]):
        save(*names)
    run = tune("--list", "large+small")
    assert (run.status, run.stderr) == (0, "")
    for line in (
        "model     /models/large.gguf, 4.7 GB, CPU",
        "model     /models/small.gguf, 470 MB, CPU",
        "machine   AMD EPYC; 2 cores",
        "threads   auto",
        "times     T(1) = 100.0, T(5) = 110.0 ms alone",
        "times     T(1) = 152.5 ms alone, 1 of the cores free",
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


@pytest.mark.parametrize(
    ("layers", "moved", "said"),
    [(-1, [], "GPU"), (3, [], "3 layers on GPU"), (-1, [["cpu_moe", "exps=CPU"]], "GPU, some tensors elsewhere")],
)
def test_where_a_model_is(layers: int, moved: list[Any], said: str) -> None:
    model = KeyModel("a.gguf", 1, layers, None, (), split=["layer", [], 0, *moved])
    assert _place(model, Key((model,), (), 1, ("", "", "CPU", "CUDA", ""), ())) == said
