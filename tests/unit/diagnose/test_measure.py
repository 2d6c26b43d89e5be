"""What `duo tune` measures, of models whose times are known: each thread has a clock that only decodes move."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from duo.diagnose import measure
from duo.diagnose.measure import SIZES, Interrupted, MeasurementError, Meter, Series
from duo.diagnose.prospects import Measurements
from duo.engine.cores import ON_CPU
from duo.errors import DecodeError
from tests.fakes import FakeContext

N_VOCAB = 300
TEXT = [7, 8, 9]


def draft_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("duo-draft")]


def on_draft_thread() -> bool:
    return threading.current_thread().name in draft_threads()


class Clock(threading.local):
    """Replaces the module `time`."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


def count(prefix: Sequence[int]) -> int:
    """The text counts up."""
    return (prefix[-1] + 1) % N_VOCAB


class Machine:
    """A target that takes 10 ms and 1 ms for each token, and a draft that takes 1.5 ms and 0.5 ms, on one thread.

    Five times as long while other programs compute.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock, self.notes, self.stop = Clock(), list[str](), threading.Event()
        self.busy: Callable[[float], bool] = lambda _: False  # by seconds
        self.target_s: Callable[[int], float] = lambda n: 0.010 + 0.001 * n
        self.target = FakeContext(count, lambda: self._pass(self.target, self.target_s), 64, 32, N_VOCAB)
        self.draft = FakeContext(count, lambda: self._pass(self.draft, draft_s), 64, 32, N_VOCAB, n_branches=8)
        self.also: Callable[[FakeContext], object] = lambda _: None  # what else happens in each decode
        self.stop_at: str | None = None
        replaced = {
            "time": self.clock,
            "cpu_times": lambda: SimpleNamespace(now=self.clock.now),
            "other_cpu_use": lambda _: 1.7 if self.busy(self.clock.now) else 0.0,
            "usable_cores": lambda: 2,
            "is_busy": lambda n_others, _: n_others > 1,
        }
        for name, value in replaced.items():
            patch.setattr(measure, name, value)
        self.meter = Meter(self.target, self.draft, self._on_progress, self.stop, self.notes.append)

    def _on_progress(self, name: str, share: float) -> None:
        if self.stop_at is not None and name.startswith(self.stop_at):
            self.stop.set()

    def _pass(self, model: FakeContext, batch_s: Callable[[int], float]) -> None:
        seconds = batch_s(model.batches[-1]) / max([1, *model.teams[-1:]])
        self.clock.now += seconds * (5 if self.busy(self.clock.now) else 1)
        if on_draft_thread():
            time.sleep(0.001)  # its decodes take no time: let the target's thread run
        self.also(model)

    def measure(self) -> Measurements:
        return self.meter.measure([1, 2], [1, 4], [(1, 1), (2, 1)])

    def announce(self) -> tuple[float, float]:
        return self.meter.announce(2, 1, 10, ON_CPU)

    def times(self) -> dict[int, float]:
        return self.meter.measure([2]).target[2]


def draft_s(n: int) -> float:
    return 0.0015 + 0.0005 * n


def approx(batch_s: Callable[[int], float], sizes: Sequence[int], n_threads: int) -> object:
    return pytest.approx({n: batch_s(n) / n_threads for n in sizes})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """No thread is left behind, and none has raised."""
    failed = list[object]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield Machine(monkeypatch)
    assert draft_threads() == []
    assert failed == []


def test_each_model_is_timed_alone_on_each_number_of_threads_and_both_concurrently(machine: Machine) -> None:
    machine.target.decode([1, 2, 3])  # of an earlier use
    found = machine.measure()
    assert found.target == {threads: approx(machine.target_s, SIZES, threads) for threads in (1, 2)}
    assert found.draft == {threads: approx(draft_s, (1, 2), threads) for threads in (1, 4)}
    assert found.doubts == ""
    assert machine.target.n_past == machine.draft.n_past == 32, "each decode after the same text"
    assert list(found.concurrent) == [(1, 1), (2, 1)]
    for (n_threads, _), (times, seconds) in found.concurrent.items():
        assert times == approx(machine.target_s, SIZES, n_threads)
        assert seconds == pytest.approx(0.0020)
    assert machine.target.threads == {threading.get_ident()}
    assert machine.draft.threads > {threading.get_ident()}


@pytest.mark.parametrize(
    ("choose", "n_vocab", "n", "right"),
    [
        (count, N_VOCAB, 10, [True] * 10),
        # Wrong for every third token; later ones are scored after the target's own text.
        (lambda prefix: 0 if prefix[-1] % 3 == 0 else count(prefix), N_VOCAB, 6, [False, True, True] * 2),
        # The text leaves the draft's vocabulary.
        (lambda prefix: min(count(prefix), 12), 13, 10, [True] * 3 + [False]),
        # The draft would propose what the target does not have.
        (lambda _: N_VOCAB + 1, N_VOCAB + 2, 3, [False] * 3),
    ],
    ids=["the same model", "wrong", "smaller vocabulary", "larger vocabulary"],
)
def test_acceptance_is_measured_along_the_targets_text(
    machine: Machine, choose: Callable[[Sequence[int]], int], n_vocab: int, n: int, right: list[bool]
) -> None:
    machine.draft.choose, machine.draft.n_vocab = choose, n_vocab
    found, ratio = machine.meter.score(TEXT, list(range(10, 10 + n)), 3)
    assert ratio == 1
    assert [accepted for _, accepted in found] == right
    assert set(machine.draft.teams) == {3}


@pytest.mark.parametrize("phase", range(4))
def test_a_request_to_stop_ends_every_phase(machine: Machine, phase: int) -> None:
    machine.stop_at = ("the draft on", "the target on", "the target on 1 thread and", "the draft's acceptance")[phase]
    with pytest.raises(Interrupted):
        _ = machine.measure(), machine.meter.score(TEXT, TEXT, 1)


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_failure_of_either_concurrent_model_is_raised(machine: Machine, which: str) -> None:
    def also(model: FakeContext) -> None:
        if draft_threads() and model is getattr(machine, which) and on_draft_thread() == (which == "draft"):
            raise DecodeError(f"the {which} is dead")

    machine.also = also
    with pytest.raises(DecodeError, match=f"the {which} is dead"):
        machine.measure()


def test_the_drafts_times_become_those_of_the_targets_tokens() -> None:
    found = Measurements({1: {1: 0.1}}, {1: {1: 0.01, 2: 0.015}, 2: {1: 0.02}}, {(1, 1): ({1: 0.2}, 0.03)})
    found.add_scores([([(1.0, True)], 1.5), ([(2.0, False)], 2.5)])
    draft = {1: {1: 0.02, 2: 0.03}, 2: {1: 0.04}}
    scores = [(1.0, True), (2.0, False)]
    assert found == Measurements({1: {1: 0.1}}, draft, {(1, 1): ({1: 0.2}, 0.06)}, scores=scores)
    assert found.acceptance == 0.5


@pytest.mark.parametrize(
    ("times", "is_settled"),
    [
        ([1.0, 1.0], False),
        ([1.0, 1.02, 1.01], True),
        ([1.0, 1.0, 9.0], True),  # what disturbs makes a decode longer
        ([1.0, 2.0, 2.0], False),  # the fast one may be the right one
        ([1.0, 2.0, 2.0, *[2.0] * 9], True),
    ],
)
def test_times_are_settled_if_their_median_is_certain(times: list[float], is_settled: bool) -> None:
    assert Series(times=times).is_settled == is_settled
    assert Series(disturbed=[5.0, 1.0, 2.0, 3.0, 4.0]).seconds == 2.0, "better than none"


# While other programs compute


def test_an_idle_machine_is_measured_as_fast_as_announced(machine: Machine) -> None:
    expected_s, limit_s = machine.announce()
    start = machine.clock.now
    assert machine.times() == approx(machine.target_s, SIZES, 2)
    assert machine.clock.now - start < 2 * expected_s < limit_s
    assert machine.notes == []


def test_what_others_have_disturbed_is_measured_again(machine: Machine) -> None:
    machine.announce()
    begin = machine.clock.now + 1
    machine.busy = lambda now: begin < now < begin + 8
    assert machine.times() == approx(machine.target_s, SIZES, 2), "nothing that was disturbed counts"
    (said,) = machine.notes
    assert said.startswith("other programs use 1.7 of 2 cores: measuring again, for up to ")
    assert said.endswith(" s; if they go on, nothing is saved")


def test_disturbed_times_are_used_when_the_rest_of_the_time_is_needed_for_them(machine: Machine) -> None:
    _, limit_s = machine.announce()
    start = machine.clock.now
    machine.busy = lambda _: True
    assert machine.times() == approx(lambda n: 5 * machine.target_s(n), SIZES, 2)
    assert machine.meter.doubts == "other programs use 1.7 of 2 cores"
    assert limit_s / 2 < machine.clock.now - start < limit_s + 1


def test_times_that_vary_too_much_are_doubted_and_without_any_there_is_no_result(machine: Machine) -> None:
    machine.announce()
    speeds = iter(range(10**6))
    machine.target_s = lambda _: 0.0005 * next(speeds)
    machine.times()
    assert machine.meter.doubts == "the times vary too much"
    machine.target_s = lambda _: 1000.0
    with pytest.raises(MeasurementError, match="cannot be measured now: the times vary too much"):
        machine.times()


def test_of_a_slow_target_fewer_sizes_are_timed(machine: Machine) -> None:
    machine.target_s = lambda n: 1.0 + 0.1 * n
    machine.announce()
    assert set(machine.times()) == {1, 2, 3, 4, 5, 8, 12, 17}
