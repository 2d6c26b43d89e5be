"""The measurement of a pair, of models whose times are known: each thread has a clock that only decodes move."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.machine import N_READ, SIZES, Series, document, measure, noise
from duo.bench.machines import read_machine
from tests.fakes import FakeContext

N_VOCAB = 300


class ThreadClock(threading.local):
    """Replaces the module `time`."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeContext, FakeContext]]:
    """A target that takes 10 s and 1 s per token, a draft that takes 2 s and 0.1 s, both divided by their threads."""
    clock, n_threads = ThreadClock(), threading.active_count()
    monkeypatch.setattr("benchmarks.machine.time", clock)

    def passes(model: FakeContext, once: float, each: float) -> None:
        slow_start = 100.0 if len(model.batches) < 10 else 0.0
        clock.now += slow_start + (once + each * model.batches[-1]) / max(1, model.teams[-1])
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.001)  # its decodes take no time: let the target's thread run

    target = FakeContext(lambda _: 0, lambda: passes(target, 10.0, 1.0), 512, N_READ, N_VOCAB)
    draft = FakeContext(lambda _: 0, lambda: passes(draft, 2.0, 0.1), 512, N_READ, N_VOCAB)
    yield target, draft
    assert threading.active_count() == n_threads


def test_each_time_is_of_its_batch_threads_and_condition(pair: tuple[FakeContext, FakeContext]) -> None:
    found = measure(*pair, n_threads=4, n_rounds=3)
    assert found.target == {n: pytest.approx([(10 + n) / 4] * 3) for n in SIZES}
    assert found.beside_target == {n: pytest.approx([(10 + n) / 3] * 3) for n in SIZES}
    assert found.draft == pytest.approx([2.1 / 4] * len(found.draft))
    assert set(map(round, found.beside_draft, [6] * len(found.beside_draft))) == {2.1}
    assert found.read == pytest.approx([(2 + 0.1 * N_READ) / 4] * 3)
    assert pair[1].threads > {threading.get_ident()}, "the draft ran on a thread of its own"


def test_one_core_is_shared(pair: tuple[FakeContext, FakeContext]) -> None:
    assert measure(*pair, n_threads=1, n_rounds=1).beside_target[1] == pytest.approx([11.0])
    assert set(pair[0].teams[1:]) == {1}


def test_noise_is_about_the_median_and_spikes_are_not_noise() -> None:
    assert noise([1.1, 1 / 1.1, 1.1, 1 / 1.1, 4.0]) == pytest.approx((math.log(1.1), 0.2))


def test_the_document_is_what_the_judge_reads(tmp_path: Path) -> None:
    times = {n: [0.010 + 0.001 * n, 0.001, 9.0] for n in SIZES}
    series = Series(times, times, [0.002] * 3, [0.003] * 3, [0.001 * N_READ] * 3)
    found = document("a machine", 3, {"demo": series})
    figures = found["pairs"]["demo"]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({**found, "noise": 0.1}))
    assert read_machine(path)["demo"].machine.target_s[:2] == pytest.approx([0.011, 0.012])
    assert (figures["draft_ms"], figures["beside_draft_ms"], figures["read_ms"], figures["traces"]) == (2, 3, 1, "demo")
    assert found["name"] == "a machine"
    assert 0 < found["spikes"] < 1
