"""What a profile is stored under: everything that affects the cost of a decode. What it keeps: no disturbed times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.engine import profile
from duo.engine.profile import ProfileRecorder, Profiles, find_profiles
from duo.llama.build import versions
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from tests.unit.speculation.pairs import pair

CONFIG = EngineConfig()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))


def make_model(path: Path) -> ModelConfig:
    path.write_bytes(b"weights")
    return ModelConfig(path)


@pytest.fixture
def models(tmp_path: Path) -> list[ModelConfig]:
    return [make_model(tmp_path / name) for name in ("a.gguf", "b.gguf")]


def found(config: EngineConfig, models: list[ModelConfig]) -> Profiles:
    """The profiles of a target, the first of these, and of its drafts."""
    return find_profiles(config, models[0], {model.path.stem: model for model in models[1:]})


def path_of(config: EngineConfig, models: list[ModelConfig]) -> Path:
    return found(config, models).drafts["b"].path


def test_all_that_affects_the_cost_of_a_decode_has_a_profile_of_its_own(
    models: list[ModelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlike: list[dict[str, Any]] = [
        {"n_threads": 1}, {"draft_n_threads": 1}, {"cpu_range": "0-0"}, {"draft_cpu_range": "0-0"},
        {"flash_attn": "on"}, {"type_k": "f32"}, {"type_v": "f32"}, {"exact": True},
    ]  # fmt: skip
    places: list[dict[str, Any]] = [
        {"n_gpu_layers": 3}, {"devices": ("GPU0",)}, {"rpc_servers": ("a:1",)}, {"tensor_split": (1.0,)},
        {"overrides": (("cpu_moe", "exps=CPU"),)}, {"overrides": (("cpu_moe", "up_exps=CPU"),)},
    ]  # fmt: skip
    machine: list[tuple[str, object]] = [
        ("usable_cores", 77), ("list_backends", ["CPU", "CUDA"]), ("system_info", "CPU : AVX512 = 1"),
        ("list_devices", []),
        *(("versions", versions() | {name: "another"}) for name in ("llama-cpp-python", "llama.cpp")),
    ]  # fmt: skip
    paths = [path_of(CONFIG, models)]
    same = replace(CONFIG, warmup=False, schedule="sync", draft_n_max=3, n_ctx=9)
    assert path_of(same, models) == paths[0]
    paths += [path_of(replace(CONFIG, **options), models) for options in unlike]
    for i, model in enumerate(models):
        moved = [[*models[:i], replace(model, **place), *models[i + 1 :]] for place in places]
        paths += [path_of(CONFIG, pair) for pair in moved]
        model.path.write_bytes(b"more weights")
        paths.append(path_of(CONFIG, models))
    for name, value in machine:
        with monkeypatch.context() as patch:
            patch.setattr(profile, name, lambda value=value: value)
            paths.append(path_of(CONFIG, models))
    assert len({*paths}) == len(paths)


# What drafts of one target share


class Run:
    """A run with a target and drafts, which begins with what is stored."""

    def __init__(self, models: list[ModelConfig]) -> None:
        self.profiles, self.controller = found(CONFIG, models), Controller()
        self.drafts = {name: DraftEstimates(self.controller.target, 8, 16, name=name) for name in self.profiles.drafts}
        self.profiles.restore(self.controller, list(self.drafts.values()))

    def learns(self, target_s: dict[int, float], draft_s: float, threads: Any = None) -> None:
        """What it measures is stored."""
        for n, seconds in target_s.items():
            self.controller.target.alone.add(n, seconds)
        for draft in self.drafts.values():
            draft.costs.alone.add(draft_s)
        states = {name: draft.state() for name, draft in self.drafts.items()}
        self.profiles.save(self.controller.target.state(), states, threads)

    def knows(self, n: int) -> float:
        return self.controller.target.alone.time(n).value

    @property
    def draft_s(self) -> list[float]:
        return [draft.costs.alone.token_s for draft in self.drafts.values()]


def test_the_times_of_a_target_are_those_of_its_last_run_with_any_draft(
    models: list[ModelConfig], tmp_path: Path
) -> None:
    other = [models[0], make_model(tmp_path / "c.gguf")]
    assert not Run(other).knows(1)
    Run(models).learns({1: 0.1, 4: 0.2}, 0.01)
    first = Run(other)
    assert (first.knows(1), first.knows(4), first.draft_s) == (0.1, 0.2, [0.0])
    first.learns({1: 0.14}, 0.05)
    again, both = Run(models), Run([*models, other[1]])
    assert (again.knows(4), again.draft_s) == (0.2, [0.01])
    assert 0.1 < again.knows(1) == Run(models[:1]).knows(1) == both.knows(1) <= 0.14
    assert both.draft_s == [0.01, 0.05]


def test_another_number_of_threads_is_not_shared(models: list[ModelConfig]) -> None:
    Run(models).learns({1: 0.1}, 0.01, {"target": 99, "draft": 1, "concurrent": [1, 1]})
    assert (Run(models).knows(1), Run(models[:1]).knows(1)) == (0.1, 0)


@pytest.mark.parametrize("damage", [None, 7, [], {"costs": 3}, {"costs": {"0": []}}])
def test_a_damaged_profile_of_the_target_damages_no_other(models: list[ModelConfig], damage: Any) -> None:
    Run(models).learns({1: 0.1}, 0.01)
    target = Run(models).profiles.target
    assert target is not None
    target.save({"target": damage})
    assert (Run(models).knows(1), Run(models).draft_s) == (0.0, [0.01])
    Run(models).learns({1: 0.2}, 0.01)
    assert Run(models[:1]).knows(1) == 0.2


def test_without_profiles_nothing_is_read_or_written() -> None:
    Profiles().restore(Controller(), [])
    Profiles().save(Controller().target.state(), {})
    assert Profiles().target is None


# What it keeps of a busy machine

QUIET, BUSY = 0.0, 1.7


class Watched:
    """A controller that learns text by text, on a machine where other programs use so many cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_others = QUIET
        monkeypatch.setattr(profile, "other_cpu_use", lambda _: self.n_others)
        self.controller, self.draft = self.pair = pair()
        self.recorder = ProfileRecorder(self.controller, [self.draft], 64)

    def text(self, seconds: float, n_others: float) -> None:
        self.n_others = n_others
        with self.recorder.watching():
            self.pair.begin(1)
            for _ in range(3):
                self.draft.learn_draft(1, seconds / 2)
                self.pair.step(1, 0, seconds)
            self.draft.learn_scores([(1.0, True)] * 4)

    def kept_s(self, n_cores: str = "0") -> float | None:
        """T(1) in the profile; "0": with all cores."""
        target, _ = self.recorder.state()
        assert target is not None
        kept = target["costs"].get(n_cores, {})
        return kept["1"][0] if kept else None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_all_is_kept_of_a_quiet_machine_and_what_was_known_before_of_a_busy_one(watched: Watched) -> None:
    assert watched.recorder.state() == (None, {})
    watched.text(0.1, QUIET)
    before = watched.draft.state()
    assert watched.recorder.state() == (watched.controller.target.state(), {"draft": before})
    for seconds, n_others in ((0.5, BUSY), (0.4, QUIET)):  # which began with what the busy machine has taught
        watched.text(seconds, n_others)
        assert watched.kept_s() == pytest.approx(0.1)
    assert watched.recorder.n_others > 0
    kept, now = watched.recorder.state()[1]["draft"], watched.draft.state()
    assert kept["acceptance"] == now["acceptance"] != before["acceptance"]
    assert kept["costs"]["times"]["0"] == before["costs"]["times"]["0"] != now["costs"]["times"]["0"]


def test_of_a_machine_that_was_busy_from_the_beginning_no_times_are_kept_but_those_with_fewer_cores(
    watched: Watched,
) -> None:
    watched.n_others = BUSY
    with pytest.raises(ValueError, match="failed"), watched.recorder.watching():
        raise ValueError("failed")
    watched.text(0.1, QUIET)
    assert watched.kept_s() is None
    watched.controller.use_cores(1)
    for _ in range(3):
        watched.text(0.2, BUSY)
    assert watched.kept_s("1") == pytest.approx(0.2, rel=0.05)
    assert watched.kept_s() is None
    assert pair().restore([watched.recorder.state()[0], watched.recorder.state()[1]["draft"]])
