"""Tiny models: made in milliseconds, real to llama.cpp."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from duo.diagnose.measure import SIZES, Meter
from duo.diagnose.prospects import Measurements
from tests import child
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mamba(tmp_path_factory.mktemp("models") / "recurrent.gguf")


@pytest.fixture(scope="session")
def kin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of several architectures that generate similar texts: about every other candidate of `llama` is right."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "llama": tiny_llama(folder / "llama.gguf", seed=2, depth=0.02),
        "lfm2": tiny_hybrid(folder / "lfm2.gguf", seed=2, depth=0.05),
        "qwen35": tiny_qwen35(folder / "qwen35.gguf", seed=2, depth=0.05),
        "gemma": tiny_gemma(folder / "gemma.gguf", window=16, seed=2, depth=0.2),
    }


@pytest.fixture
def slow_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target so slow that the draft is ahead of it, and pays."""
    child.slow_target(0.02, monkeypatch.setattr)


@pytest.fixture
def set_cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets duo see this many cores, whatever the machine has."""
    users = [module for name, module in sys.modules.items() if name.startswith("duo.")]

    def set_cores(n: int) -> None:
        for module in users:
            if hasattr(module, "usable_cores"):
                monkeypatch.setattr(module, "usable_cores", lambda: n)

    return set_cores


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch, set_cores: Callable[[int], None]) -> dict[str, float]:
    """Only acceptance is measured, on one core: the target takes 100 ms a decode, the draft what is in the result."""
    times = {"draft": 0.005}
    set_cores(1)

    def measure(
        self: Meter, targets: Sequence[int], drafts: Sequence[int] = (), splits: Sequence[tuple[int, int]] = (),
        _: Sequence[int] = (),
    ) -> Measurements:  # fmt: skip
        alone = {n_threads: dict.fromkeys(SIZES, 0.1) for n_threads in targets}
        draft = {n_threads: {1: times["draft"], 2: 1.3 * times["draft"]} for n_threads in drafts}
        both = {split: (dict.fromkeys(SIZES, 0.11), 1.2 * times["draft"]) for split in splits}
        return Measurements(alone, draft, both)

    monkeypatch.setattr(Meter, "measure", measure)
    return times
