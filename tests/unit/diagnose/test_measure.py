"""What `duo tune` measures, of models whose times are known: each thread has a clock that only decodes move."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from duo.diagnose.measure import SIZES, Measurements, Meter, Stopped
from duo.errors import DecodeError
from tests.fakes import FakeContext
from tests.unit.engine.helpers import draft_threads

N_VOCAB = 300
TEXT = [7, 8, 9]


class Clock(threading.local):
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("duo.diagnose.measure.time", made)
    return made


@pytest.fixture(autouse=True)
def no_thread_is_left() -> object:
    yield
    assert draft_threads() == []


def count(prefix: Sequence[int]) -> int:
    """The text counts up."""
    return (prefix[-1] + 1) % N_VOCAB


class Pair:
    """A target that takes 10 s and 1 s more for each token, a draft that takes 2 s, both divided by their threads."""

    def __init__(self, clock: Clock, guess: Callable[[Sequence[int]], int] = count) -> None:
        self._clock = clock
        self.target = FakeContext(count, lambda: self._pass(self.target, 10.0, 1.0), 64, 32, N_VOCAB)
        self.draft = FakeContext(guess, lambda: self._pass(self.draft, 2.0, 0.0), 64, 32, N_VOCAB)
        self.stop = threading.Event()
        self.progress: list[tuple[str, float]] = []
        self.meter = Meter(self.target, self.draft, lambda *event: self.progress.append(event), self.stop)

    def _pass(self, model: FakeContext, once: float, each: float) -> None:
        self._clock.now += (once + each * model.batches[-1]) / max(1, model.teams[-1])
        if threading.current_thread().name == "duo-draft":
            time.sleep(0.001)  # it has all the time in the world: let the others on

    def measure(self) -> Measurements:
        return self.meter.measure([1, 2], [1, 4], [(1, 1), (2, 1)], n_text=1)


def test_each_model_is_timed_alone_on_each_number_of_threads(clock: Clock) -> None:
    found = Pair(clock).measure()
    assert found.target == {(threads, n): pytest.approx((10 + n) / threads) for threads in (1, 2) for n in SIZES}
    assert found.draft == {1: pytest.approx(2.0), 4: pytest.approx(0.5)}


def test_both_are_timed_side_by_side_each_on_a_thread_of_its_own(clock: Clock) -> None:
    pair = Pair(clock)
    found = pair.measure()
    assert list(found.beside) == [(1, 1), (2, 1)]
    for (n_threads, _), (times, draft_s) in found.beside.items():
        assert times == {n: pytest.approx((10 + n) / n_threads) for n in SIZES}
        assert draft_s == pytest.approx(2.0)
    assert pair.target.threads == {threading.get_ident()}
    assert pair.draft.threads > {threading.get_ident()}


def test_every_decode_is_timed_after_the_same_text(clock: Clock) -> None:
    pair = Pair(clock)
    pair.target.decode([1, 2, 3])  # of an earlier use
    pair.measure()
    assert pair.target.n_past == pair.draft.n_past == 32


def test_one_slow_decode_spoils_nothing(clock: Clock) -> None:
    pair = Pair(clock)
    usual = pair.target.during

    def during() -> None:
        usual()
        clock.now += 1000.0 * (len(pair.target.batches) % 3 == 0)

    pair.target.during = during
    assert pair.measure().target[1, 4] == pytest.approx(14.0)


def test_progress_goes_from_nothing_to_all(clock: Clock) -> None:
    pair = Pair(clock)
    pair.measure()
    pair.meter.accept(TEXT, 10, 1)
    shares = [share for _, share in pair.progress]
    assert shares == sorted(set(shares))
    assert shares[0] == 0.0
    assert 0.95 < shares[-1] < 1.0
    assert {"the draft on 4 threads", "how often the draft guesses right"} < {name for name, _ in pair.progress}


# Acceptance


def test_a_draft_that_says_the_same_is_always_right(clock: Clock) -> None:
    pair = Pair(clock)
    assert pair.meter.accept(TEXT, 10, 3) == [(5.0, True)] * 10
    assert set(pair.target.teams) == set(pair.draft.teams) == {3}


def test_every_guess_is_judged_after_the_targets_own_text(clock: Clock) -> None:
    """Wrong for every third token; what it guesses next does not suffer."""
    pair = Pair(clock, lambda prefix: 0 if prefix[-1] % 3 == 0 else count(prefix))
    pair.target.decode([1, 2, 3])
    assert pair.meter.accept(TEXT, 6, 1) == [(5.0, right) for right in (False, True, True) * 2]


def test_a_text_that_leaves_the_drafts_vocabulary_is_judged_up_to_there(clock: Clock) -> None:
    pair = Pair(clock, lambda prefix: min(count(prefix), 12))
    pair.draft.n_vocab = 13
    assert pair.meter.accept(TEXT, 10, 1) == [(5.0, True)] * 3 + [(5.0, False)]


def test_guesses_beyond_the_targets_vocabulary_are_cut(clock: Clock) -> None:
    pair = Pair(clock, lambda _: N_VOCAB + 1)
    pair.draft.n_vocab = N_VOCAB + 2
    assert [right for _, right in pair.meter.accept(TEXT, 3, 1)] == [False] * 3


# Endings


@pytest.mark.parametrize("phase", ["the draft on", "the target on", "both on", "how often"])
def test_it_stops_when_asked_in_every_phase(clock: Clock, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    pair = Pair(clock)

    def progress(name: str, _: float) -> None:
        if name.startswith(phase):
            pair.stop.set()

    pair.meter = Meter(pair.target, pair.draft, progress, pair.stop)
    with pytest.raises(Stopped):
        _ = pair.measure(), pair.meter.accept(TEXT, 10, 1)
    assert failed == []


def test_a_draft_that_hears_of_it_first_stops_quietly(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    pair = Pair(clock)
    usual = pair.target.during

    def during() -> None:
        usual()
        if draft_threads():
            pair.stop.set()
            draft_threads()[0].join(30)

    pair.target.during = during
    with pytest.raises(Stopped):
        pair.measure()
    assert failed == []


def test_a_draft_that_fails_beside_the_target_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    pair = Pair(clock)
    usual = pair.draft.during

    def during() -> None:
        usual()
        if threading.current_thread().name == "duo-draft":
            raise DecodeError("the draft is dead")

    pair.draft.during = during
    with pytest.raises(DecodeError, match="the draft is dead"):
        pair.measure()
    assert failed == []


def test_a_target_that_fails_beside_the_draft_is_told(clock: Clock) -> None:
    pair = Pair(clock)
    usual = pair.target.during

    def during() -> None:
        usual()
        if draft_threads():
            raise DecodeError("the target is dead")

    pair.target.during = during
    with pytest.raises(DecodeError, match="the target is dead"):
        pair.measure()
