"""What a profile is stored under: everything that affects the cost of a decode. What it keeps: no disturbed times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from duo.speculation.policy import Policy, StepCost
from duo.speculation.policy_state import PolicyState

from duo.config import EngineConfig, ModelConfig
from duo.engine import profile
from duo.engine.profile import ProfileRecorder, find_profile
from duo.llama.build import versions

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


def test_all_that_affects_the_cost_of_a_decode_has_a_profile_of_its_own(
    models: list[ModelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlike: list[dict[str, Any]] = [
        {"n_threads": 1}, {"draft_n_threads": 1}, {"cpu_range": "0-0"}, {"draft_cpu_range": "0-0"},
        {"flash_attn": "on"}, {"type_k": "f32"}, {"type_v": "f32"}, {"exact": True},
    ]  # fmt: skip
    places: list[dict[str, Any]] = [
        {"n_gpu_layers": 3}, {"devices": ("GPU0",)}, {"rpc_servers": ("a:1",)}, {"tensor_split": (1.0,)},
    ]  # fmt: skip
    machine: list[tuple[str, object]] = [
        ("usable_cores", 77), ("list_backends", ["CPU", "CUDA"]), ("system_info", "CPU : AVX512 = 1"),
        ("list_devices", []),
        *(("versions", versions() | {name: "another"}) for name in ("llama-cpp-python", "llama.cpp")),
    ]  # fmt: skip
    paths = [find_profile(CONFIG, models).path]
    same = replace(CONFIG, warmup=False, schedule="sync", draft_n_max=3, n_ctx=9)
    assert find_profile(same, models).path == paths[0]
    paths += [find_profile(replace(CONFIG, **options), models).path for options in unlike]
    for i, model in enumerate(models):
        moved = [[*models[:i], replace(model, **place), *models[i + 1 :]] for place in places]
        paths += [find_profile(CONFIG, pair).path for pair in moved]
        model.path.write_bytes(b"more weights")
        paths.append(find_profile(CONFIG, models).path)
    for name, value in machine:
        with monkeypatch.context() as patch:
            patch.setattr(profile, name, lambda value=value: value)
            paths.append(find_profile(CONFIG, models).path)
    assert len({*paths}) == len(paths)


# What drafts of one target share


def save(models: list[ModelConfig], target_s: dict[int, float], draft_s: float, **more: Any) -> None:
    learned = Policy(8, 16)
    for n, seconds in target_s.items():
        learned.alone.add_target(n, seconds)
    learned.alone.add_draft(draft_s)
    document: Any = {"policy": learned.state(), **more}
    find_profile(CONFIG, models).save(document)


def kept(models: list[ModelConfig]) -> Policy:
    made = Policy(8, 16)
    made.restore_kept(find_profile(CONFIG, models).load().get("policy"))
    return made


def test_the_times_of_a_target_are_those_of_its_last_run_with_any_draft(
    models: list[ModelConfig], tmp_path: Path
) -> None:
    other = [models[0], make_model(tmp_path / "c.gguf")]
    assert not kept(other).alone.target_s(1)
    save(models, {1: 0.1, 4: 0.2}, 0.01)
    first = kept(other)
    assert (first.alone.target(1).value, first.alone.target(4).value) == (0.1, 0.2)
    assert not first.alone.draft_s, "of another draft"
    save(other, {1: 0.3}, 0.05)
    again = kept(models)
    assert (again.alone.target(1).value, again.alone.target(4).value) == (0.3, 0), "all of the last run"
    assert again.alone.draft_s == 0.01
    assert kept(models[:1]).alone.target(1).value == 0.3


def test_another_number_of_threads_is_not_shared(models: list[ModelConfig]) -> None:
    save(models, {1: 0.1}, 0.01, threads={"target": 99, "draft": 1, "concurrent": [1, 1]})
    assert not kept(models[:1]).alone.target_s(1)
    assert kept(models).alone.target_s(1) == 0.1


@pytest.mark.parametrize("damage", [None, 7, [], {"costs": 3}, {"costs": {"0": []}}])
def test_a_damaged_profile_of_the_target_damages_no_other(models: list[ModelConfig], damage: Any) -> None:
    save(models, {1: 0.1}, 0.01)
    find_profile(CONFIG, models[:1]).save({"policy": damage})
    assert kept(models).alone.target_s(1) == 0.1
    save(models, {1: 0.2}, 0.01)
    assert kept(models[:1]).alone.target_s(1) == 0.2


# What it keeps of a busy machine

QUIET, BUSY = 0.0, 1.7


class Watched:
    """A policy that learns text by text, on a machine where other programs use so many cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_others = QUIET
        monkeypatch.setattr(profile, "other_cpu_use", lambda _: self.n_others)
        self.policy = Policy(4, 8)
        self.recorder = ProfileRecorder(self.policy, 64)

    def text(self, seconds: float, n_others: float) -> None:
        self.n_others = n_others
        with self.recorder.watching():
            self.policy.begin(1, mode="greedy")
            self.policy.learn_draft(1, seconds / 2)
            for _ in range(3):
                self.policy.learn_step(1, StepCost(0, seconds, seconds))
            self.policy.learn_scores([(1.0, True)] * 4)

    @property
    def kept(self) -> PolicyState:
        state = self.recorder.state()
        assert state is not None
        return state

    def kept_s(self, n_cores: str = "0") -> float | None:
        """T(1) in the profile; "0": with all cores."""
        kept = self.kept["costs"][n_cores][0]["target_s"]
        return kept["1"][0] if kept else None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_all_is_kept_of_a_quiet_machine_and_what_was_known_before_of_a_busy_one(watched: Watched) -> None:
    assert watched.recorder.state() is None
    watched.text(0.1, QUIET)
    assert watched.recorder.state() == watched.policy.state()
    for seconds, n_others in ((0.5, BUSY), (0.4, QUIET)):  # which began with what the busy machine has taught
        watched.text(seconds, n_others)
        assert watched.kept_s() == pytest.approx(0.1)
    assert watched.recorder.n_others > 0
    assert watched.kept["acceptance"] == watched.policy.state()["acceptance"]


def test_of_a_machine_that_was_busy_from_the_beginning_no_times_are_kept_but_those_with_fewer_cores(
    watched: Watched,
) -> None:
    watched.n_others = BUSY
    with pytest.raises(ValueError, match="failed"), watched.recorder.watching():
        raise ValueError("failed")
    watched.text(0.1, QUIET)
    assert watched.kept_s() is None
    watched.policy.use_cores(1)
    watched.text(0.2, BUSY)
    assert watched.kept_s("1") == pytest.approx(0.2)
    assert watched.kept_s() is None
    Policy(4, 8).restore(watched.kept)
