"""What `duo tune` without -md concludes from its measurements."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.config import EngineConfig, ModelConfig
from duo.diagnose import measure
from duo.diagnose.draft_comparison import DraftComparison, DraftFigures, replay_lookup
from duo.diagnose.measure import SIZES, Meter
from duo.diagnose.timing import Measurements
from duo.errors import ModelError
from duo.llama.model import Model
from duo.speculation.modes import Schedule
from tests.gguf_files import tiny_hybrid, tiny_llama, tiny_mamba

FLAT, STEEP = ({n: 0.1 * n**power for n in SIZES} for power in (0, 1))  # the cost of batches


def sync_rate(draft_s: float, share: float, pair: float = 1.3, n_max: int = 16) -> float:
    """The forecast with a draft of which `share` of the predictions is right; it is as sure of all."""
    scores = [(3.0, i < round(100 * share)) for i in range(100)]
    found = Measurements({1: FLAT}, {1: {1: draft_s, 2: pair * draft_s}}, {(1, 1): (FLAT, draft_s)}, scores=scores)
    return found.policy(1, (1, 1), n_max).forecasts()[Schedule.SYNC].rate


def test_the_forecast_has_what_was_measured() -> None:
    assert 10 < sync_rate(0.01, 0.3) < sync_rate(0.01, 0.6) < sync_rate(0.01, 0.9) < 100
    assert sync_rate(0.03, 0.6) < sync_rate(0.01, 0.6)
    assert sync_rate(0.055, 0.8, pair=1.0) > sync_rate(0.055, 0.8, pair=1.9) >= 10
    assert 25 < sync_rate(0.0001, 1.0, n_max=2) <= 30 < sync_rate(0.0001, 1.0), "as many as the target can verify"


@pytest.mark.parametrize(
    ("times", "n_repeats", "text", "accepted", "rate"),
    [
        (FLAT, 1, [48, 49, *range(40)], range(31, 42), 50),
        (STEEP, 1, [48, 49, *range(40)], range(42), None),  # each token costs as much as another decode
        (FLAT, 1, list(range(100, 140)), range(1), None),  # no match
        (FLAT, 1, [100], range(1), None),
        *((FLAT, 2, list(range(n)), range(n - 1), 0) for n in (2, 3, 10, 30)),  # never more than there are
    ],
)
def test_a_text_that_repeats_its_prompt_is_faster_with_lookup(
    times: dict[int, float], n_repeats: int, text: list[int], accepted: range, rate: float | None
) -> None:
    found = replay_lookup(times, [([*range(50)] * n_repeats, text)], 16)
    assert found.n_accepted in accepted
    assert found.n_verified >= found.n_accepted
    n_decodes = len(text) - 1 - found.n_accepted  # each adds a token of the target's own
    if times is FLAT and n_decodes:
        assert found.rate == pytest.approx((len(text) - 1) / (0.1 * n_decodes))
    assert found.rate > rate if rate is not None else found.rate == pytest.approx(10)


# Of tiny models, of which only the predictions are measured


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_instantly(
        self: Meter, targets: Sequence[int], drafts: Sequence[int] = (), splits: Sequence[tuple[int, int]] = (),
        _: Sequence[int] = (),
    ) -> Measurements:  # fmt: skip
        alone, draft = (
            {n: dict.fromkeys(SIZES, s) for n in threads} for threads, s in ((targets, 0.1), (drafts, 0.01))
        )
        return Measurements(alone, draft, {split: ({1: 0.2}, 0.02) for split in splits})

    monkeypatch.setattr(Meter, "measure", measure_instantly)
    monkeypatch.setattr(measure, "cpu_times", lambda: SimpleNamespace(now=0.0))


@contextmanager
def compared(target: Path) -> Iterator[DraftComparison]:
    with closing(Model(ModelConfig(target))) as model:
        prompts = [model.tokenize("the cat"), model.tokenize("a dog ran on the mat")]
        more = (lambda *_: None, threading.Event(), lambda _: None)
        with closing(DraftComparison(model, EngineConfig(n_threads=1), prompts, 12, *more)) as comparison:
            yield comparison


def measured(comparison: DraftComparison, draft: Path) -> DraftFigures:
    with closing(Model(ModelConfig(draft))) as model:
        return comparison.measure_draft(model, lambda *_: None)


def test_drafts_are_compared_along_the_texts_of_the_target(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "target.gguf", seed=2)
    other = tiny_llama(tmp_path / "draft.gguf", seed=2, words=("▁cat", "▁the", "▁", "a", "b", "c", "t", "h", "e"))
    recurrent = tiny_mamba(tmp_path / "recurrent.gguf")
    with compared(path) as comparison:
        assert [len(text) for _, text in comparison.texts] == [12, 12]
        copy, translated = measured(comparison, path), measured(comparison, other)
        with pytest.raises(ModelError, match=r"recurrent\.gguf: it cannot roll back its cache$"):
            measured(comparison, recurrent)
    assert (copy.acceptance, copy.is_translated, copy.n_scored) == (1.0, False, 24)
    assert copy.policy.alone.draft_s == pytest.approx(0.01)
    assert copy.policy.concurrent.curve(17) == pytest.approx([0.2] * 17)
    assert (translated.is_translated, translated.n_scored) == (True, 24)
    assert translated.policy.alone.draft_s != pytest.approx(0.01), "for a token of the target's vocabulary"


def test_a_hybrid_target_verifies_no_more_than_it_can_roll_back(tmp_path: Path) -> None:
    with compared(tiny_hybrid(tmp_path / "target.gguf")) as comparison:
        assert comparison.n_max < 16
        assert measured(comparison, tiny_llama(tmp_path / "draft.gguf")).rates[Schedule.OFF] == pytest.approx(10)
