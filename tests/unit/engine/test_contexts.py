"""The warm-up: which batches are decoded, and that nothing of them is left."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duo.config import ThreadConfig
from duo.engine.contexts import time_draft, warm_up
from duo.errors import DecodeError
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.target_costs import TargetCosts
from tests.fakes import FakeContext

CPU = frozenset({"CPU"})
DEVICE = frozenset({"GPU0"})
TRIED = ThreadConfig(1, 1, (1, 2, 4), (1, 3))


def model(places: frozenset[str] = CPU) -> Any:
    return SimpleNamespace(bos=1, eos=2, places=places, path=Path("model.gguf"))


def knowing(threads: Sequence[int] = (), sequences: Sequence[int] = ()) -> DraftEstimates:
    """Estimates that know the draft's time with these numbers of threads, and for these numbers of sequences."""
    made = DraftEstimates(TargetCosts(), 4, 8, draft_threads=(1, 2, 4))
    for n in threads:
        made.learn_warmup(n, 0.1)
    for n in sequences:
        made.learn_branches(n, 2.0)
    return made


def test_on_devices_no_further_size_is_decoded_if_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """test_slot.py: which are decoded otherwise."""
    context = FakeContext(n_batch=32)
    clock = SimpleNamespace(perf_counter=lambda: 0.5 * len(context.batches))
    monkeypatch.setattr("duo.engine.contexts.time", clock)
    caplog.set_level("INFO", "duo.engine")
    assert warm_up(context, model(CPU | DEVICE), 17, 17) == 0.5
    assert context.batches == [1, 1, 2, 3, 4]
    assert caplog.messages == ["warming up model.gguf: 4 of 17 batch sizes", "warmed up model.gguf in 2 s"]
    assert context.n_past == 0


def test_after_a_failure_nothing_is_decoded() -> None:
    context, estimates = FakeContext(n_branches=8), knowing()

    def fail() -> None:
        raise DecodeError("the device is lost")

    context.during = fail
    for places in (CPU, DEVICE):
        assert warm_up(context, model(places), 5) == math.inf
    time_draft(context, model(), TRIED, estimates)
    assert len(context.batches) == 3
    assert (context.n_past, context.branches) == (0, {})
    assert not estimates.costs.knows(1)


@pytest.mark.parametrize(
    ("n_branches", "known", "told"), [(8, (), [2, 5, 9]), (8, (5,), [2, 9]), (4, (), [2, 5]), (0, (), [])]
)
def test_a_draft_is_timed_with_all_numbers_of_threads_and_of_sequences_that_are_not_known(
    n_branches: int, known: Sequence[int], told: list[int]
) -> None:
    context, estimates = FakeContext(n_branches=n_branches), knowing([2], known)
    time_draft(context, model(), TRIED, estimates)
    assert all(map(estimates.costs.knows, TRIED.draft))
    assert all(estimates.costs.knows(1, n) for n in told)
    assert context.batches == [1, 1, 1, 1, *(n for n in (1, *told) for _ in range(2 if told else 0))]
    assert context.teams == [1, 1, 4, 4, *[3, 3] * bool(told)], "the faster of two counts"
    assert (context.tokens, context.branches) == ([], {})
