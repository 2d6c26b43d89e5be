"""What `duo tune` without -md concludes from its measurements."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.diagnose import target_meter
from duo.diagnose.draft_comparison import (
    _BOTH,
    DraftComparison,
    DraftFigures,
    TargetFigures,
    forecast_rates,
    replay_lookup,
)
from duo.diagnose.measure import Meter
from duo.diagnose.target_meter import SIZES, TargetMeter
from duo.errors import ModelError, PromptError
from duo.llama.model import Model
from duo.spec.pair import Machine
from duo.spec.schedule import Schedule
from tests.gguf_files import tiny_hybrid, tiny_llama, tiny_mamba

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
FLAT, STEEP = [0.1] * len(SIZES), [0.1 * n for n in SIZES]  # the cost of batches
REPEATED = [*range(50), *range(50)]


def scores(share: float) -> list[tuple[float, bool]]:
    """Predictions, `share` of which are right; the draft is as sure of all."""
    return [(3.0, i < round(100 * share)) for i in range(100)]


def drafted(draft_s: float, share: float, slower: float = 1.0, times: Sequence[float] = FLAT) -> DraftFigures:
    machine = Machine(times, draft_s, [slower * seconds for seconds in times], slower * draft_s)
    return DraftFigures(False, machine, scores(share), forecast_rates(machine, scores(share), 16))


# Drafts


def test_the_schedule_is_the_one_that_pays_most() -> None:
    assert drafted(0.03, 0.8).best is ASYNC
    assert drafted(0.03, 0.8, slower=3.0).best is SYNC
    for figures in (drafted(0.2, 0.8), drafted(0.005, 0.0), drafted(0.005, 0.8, times=STEEP, slower=2.0)):
        assert figures.best is OFF
        assert figures.rates[OFF] == pytest.approx(10)


def test_the_forecast_increases_with_acceptance_and_speed() -> None:
    rates = [max(drafted(0.01, share).rates.values()) for share in (0.3, 0.6, 0.9)]
    assert rates == sorted(rates)
    assert 1.1 < rates[0] / 10 < rates[2] / 10 < 10
    assert max(drafted(0.03, 0.6).rates.values()) < rates[1]


def test_the_forecast_is_for_no_more_candidates_than_the_target_can_verify() -> None:
    machine = Machine(FLAT, 0.0001, FLAT, 0.0001)
    rates = forecast_rates(machine, scores(1.0), 2)
    assert 25 < rates[SYNC] <= 30 < forecast_rates(machine, scores(1.0), 16)[SYNC]


def test_acceptance_is_the_share_that_is_right() -> None:
    assert drafted(0.01, 0.25).acceptance == 0.25
    assert DraftFigures(False, Machine(FLAT, 0.1, FLAT, 0.1), [], {}).acceptance == 0.0


def test_the_forecast_is_that_of_what_was_measured() -> None:
    """Also of a draft that pays too little for a run to find out at once."""
    times = [0.1 + 0.02 * i for i in range(len(SIZES))]
    cheap, dear = (Machine(times, 0.055, times, 0.055, pair_s=two * 0.055) for two in (1.0, 1.9))
    rates = [forecast_rates(machine, scores(0.8), 16) for machine in (cheap, dear)]
    assert rates[0][SYNC] > rates[1][SYNC] >= rates[1][OFF] == pytest.approx(10)
    assert rates[0][SYNC] >= 1.8 / (0.055 + 0.12)
    assert rates[0][ASYNC] == rates[1][ASYNC]


def test_all_scores_count_alike() -> None:
    machine, first = Machine(FLAT, 0.03, FLAT, 0.03), scores(0.7)
    assert forecast_rates(machine, first, 16) == pytest.approx(forecast_rates(machine, first[::-1], 16), rel=0.01)


# Lookup


def test_a_text_that_repeats_its_prompt_is_faster_with_lookup() -> None:
    found = replay_lookup(TargetFigures(FLAT, [(list(range(50)), [48, 49, *range(40)])]), 16)
    assert found.rate > 50
    assert found.n_verified >= found.n_accepted > 30
    steep = replay_lookup(TargetFigures(STEEP, [(list(range(50)), [48, 49, *range(40)])]), 16)
    assert steep.rate == pytest.approx(10), "nothing is verified where each token costs as much as another decode"


def test_without_a_match_lookup_is_the_target_alone() -> None:
    for text in (list(range(100, 140)), [100]):
        found = replay_lookup(TargetFigures(FLAT, [([1, 2, 3], text)]), 16)
        assert found.rate == pytest.approx(10)
        assert found.n_verified == 0


def test_lookup_never_counts_more_tokens_than_there_are() -> None:
    texts: list[tuple[Sequence[int], list[int]]] = [(REPEATED, list(range(n))) for n in (2, 3, 10, 30)]
    found = replay_lookup(TargetFigures(FLAT, texts), 16)
    n_tokens = sum(len(text) - 1 for _, text in texts)
    n_decodes = n_tokens - found.n_accepted  # each adds a token of the target's own
    assert n_decodes >= len(texts)
    assert found.rate == pytest.approx(n_tokens / (0.1 * n_decodes))


# Measurements of tiny models, of which each decode takes as long


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is 20 ms later, so that few decodes are timed."""
    looks = count()
    clock = SimpleNamespace(perf_counter=lambda: 0.02 * next(looks), process_time=lambda: 0.0)
    monkeypatch.setattr(target_meter, "time", clock)
    monkeypatch.setattr(target_meter, "doubt", lambda _: False)  # the times make no sense
    monkeypatch.setattr(target_meter, "_PATIENCE_S", 1e6)
    monkeypatch.setattr("duo.diagnose.timing._ERROR", 100.0)
    monkeypatch.setattr(target_meter, "other_cpu_use", lambda _: 0.0)


class Pair:
    """A target and a draft."""

    def __init__(self, target: Path, draft: Path) -> None:
        self.target, self.draft = Model(ModelConfig(target)), Model(ModelConfig(draft))
        self.shown: list[float] = []

    def close(self) -> None:
        self.draft.close()
        self.target.close()

    def measure(self, config: EngineConfig | None = None) -> tuple[TargetFigures, DraftFigures]:
        prompts = [self.target.tokenize(text) for text in ("the cat", "a dog ran on the mat")]
        with DraftComparison(self.target, config or EngineConfig(n_threads=1), prompts, 12) as comparison:
            target = comparison.measure_target(self._show, threading.Event())
            return target, comparison.measure_draft(self.draft, target, self._show, threading.Event())

    def _show(self, _: str, share: float) -> None:
        self.shown.append(share)


def measure(target: Path, draft: Path) -> tuple[TargetFigures, DraftFigures]:
    with closing(Pair(target, draft)) as pair:
        found = pair.measure()
        assert 0 <= min(pair.shown) <= max(pair.shown) < 1
    return found


def test_a_copy_of_the_target_is_always_right(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    target, draft = measure(path, path)
    assert target.target_s == sorted(target.target_s)
    assert len(target.target_s) == len(SIZES) == len(draft.machine.concurrent_target_s)
    assert [len(text) for _, text in target.texts] == [12, 12]
    assert (draft.acceptance, draft.is_translated, len(draft.scores)) == (1.0, False, 24)
    assert all(slow >= fast for fast, slow in zip(target.target_s, draft.machine.concurrent_target_s, strict=True))
    assert draft.machine.concurrent_draft_s >= draft.machine.draft_s > 0


def test_a_disturbance_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [0.1, 0.1, 5.0, *[0.2] * (len(SIZES) - 3)]
    monkeypatch.setattr(TargetMeter, "target_times", lambda *_: times)
    monkeypatch.setattr(Meter, "both", lambda *_: ({n: 9.0 if n == 2 else 0.3 for n in _BOTH}, 0.01))
    path = tiny_llama(tmp_path / "tiny.gguf")
    target, draft = measure(path, path)
    assert target.target_s == [0.1, 0.1, *[0.2] * (len(SIZES) - 2)]
    assert max(draft.machine.concurrent_target_s) < 1


def test_a_draft_with_another_vocabulary_is_translated(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "target.gguf", seed=2)
    draft = tiny_llama(tmp_path / "draft.gguf", seed=2, words=("▁cat", "▁the", "▁", "a", "b", "c", "t", "h", "e"))
    _, figures = measure(target, draft)
    assert figures.is_translated
    assert len(figures.scores) == 24
    assert figures.machine.draft_s > 0


def test_a_hybrid_target_verifies_no_more_than_it_can_roll_back(tmp_path: Path) -> None:
    target, draft = tiny_hybrid(tmp_path / "target.gguf"), tiny_llama(tmp_path / "draft.gguf")
    with closing(Pair(target, draft)) as pair:
        with DraftComparison(pair.target, EngineConfig(n_threads=1), [[3, 4]], 8) as comparison:
            comparison._context.n_rollback = 5
            assert comparison.n_max == 5
        _, figures = pair.measure()
        assert figures.rates[OFF] > 0


def test_models_that_cannot_roll_back_are_refused(tmp_path: Path) -> None:
    tiny, recurrent = tiny_llama(tmp_path / "tiny.gguf"), tiny_mamba(tmp_path / "recurrent.gguf")
    with pytest.raises(ModelError, match=r"recurrent\.gguf: it cannot roll back its cache, so nothing"):
        measure(recurrent, tiny)
    with pytest.raises(ModelError, match=r"recurrent\.gguf: it cannot roll back its cache$"):
        measure(tiny, recurrent)


@pytest.mark.parametrize(("prompt", "said"), [([], "no tokens"), ([3] * 501, "exceed")])
def test_prompts_without_tokens_or_with_too_many_are_refused(tmp_path: Path, prompt: list[int], said: str) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    with closing(Pair(path, path)) as pair, pytest.raises(PromptError, match=said):
        DraftComparison(pair.target, EngineConfig(), [[3, 4], prompt], 12)
