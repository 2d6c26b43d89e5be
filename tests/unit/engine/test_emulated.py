"""Emulated decodes, on a clock that only waits and decodes advance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from statistics import fmean
from types import SimpleNamespace

import pytest

from duo.engine import emulated
from duo.engine.emulated import Account, Devices, DeviceTimes, Emulated
from duo.errors import DecodeAborted, DecodeError
from tests.fakes import FakeContext

TARGET = DeviceTimes((0.025, 0.026, 0.03), (0.05, 0.052, 0.06))
DRAFT = DeviceTimes((0.008, 0.009), (0.016, 0.018), read_s=0.001)


class Clock:
    """Time, and the condition that is waited for; `meanwhile` is called once, in the middle of the next wait."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def notify_all(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.meanwhile is None:
            self.now += seconds
            return
        self.now += seconds / 2
        act, self.meanwhile = self.meanwhile, None
        act()

    def compute(self, seconds: float) -> None:
        """Something is computed."""
        self.now += seconds
        self.cpu += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(
        emulated, "time", SimpleNamespace(perf_counter=lambda: found.now, thread_time=lambda: found.cpu)
    )
    return found


def devices(clock: Clock) -> Devices:
    found = Devices()
    found.changed = clock  # type: ignore[assignment]
    return found


def model(
    clock: Clock, times: DeviceTimes, real_s: float = 0.001, slow_down: float = 1.0, account: Account | None = None,
    shared: Devices | None = None, seed: int = 0,
) -> tuple[Emulated, FakeContext, Account]:  # fmt: skip
    context = FakeContext(during=lambda: clock.compute(real_s), n_branches=4)
    account = account or Account(slow_down)
    return Emulated(context, times, account, shared or devices(clock), seed), context, account


@pytest.mark.parametrize(("n", "seconds"), [(1, 0.025), (2, 0.026), (3, 0.03), (4, 0.001)])
@pytest.mark.parametrize("slow_down", [1.0, 3.0])
def test_a_target_takes_as_long_as_its_device_but_in_a_prefill(
    clock: Clock, n: int, seconds: float, slow_down: float
) -> None:
    target, context, _ = model(clock, TARGET, slow_down=slow_down)
    target.decode([1])
    start = clock.now
    logits = target.decode([1] * n, n)
    assert clock.now - start == pytest.approx(seconds * (slow_down if n < 4 else 1))
    assert (len(logits), target.n_past, context.batches) == (n, 1 + n, [1, n])


@pytest.mark.parametrize("times", [TARGET, DRAFT])
def test_a_prompt_is_read_at_real_speed(clock: Clock, times: DeviceTimes) -> None:
    context, *_ = model(clock, times)
    context.decode([1] * 3)
    assert clock.now == pytest.approx(0.001)


def test_a_draft_takes_as_long_as_its_device(clock: Clock) -> None:
    draft, *_ = model(clock, DRAFT)
    draft.decode([1])
    draft.decode([1] * 5)
    assert clock.now == pytest.approx(0.008 + 0.008 + 4 * 0.001)
    draft.branch(1, 3)
    draft.decode_each([(0, 2), (1, 2)])
    assert clock.now == pytest.approx(0.02 + 0.009)
    draft.branch(2, 3)
    draft.decode_each([(0, 2), (1, 2), (2, 2)])
    assert clock.now == pytest.approx(0.029 + 0.009), "more sequences than the table has"


def test_noise_is_one_on_average_and_the_same_each_time(clock: Clock) -> None:
    times = DeviceTimes((0.1,), (0.1,), noise=0.2)
    series: list[list[float]] = []
    for seed in (1, 1, 2, 0):
        target, *_ = model(clock, times, seed=seed)
        series.append([])
        for _ in range(400):
            start = clock.now
            target.decode([1])
            target.rollback(0)
            series[-1].append(round(clock.now - start, 9))
    assert series[0] == series[1] != series[2]
    assert fmean(series[0]) == pytest.approx(0.1, rel=0.03)
    assert set(series[3]) == {0.1}


def test_a_decode_that_takes_longer_is_refused_with_the_slow_down_that_suffices(clock: Clock) -> None:
    target, context, account = model(clock, TARGET, slow_down=2.0)
    for i in range(10):
        target.decode([1])
        if i == 4:
            context.during = lambda: clock.compute(0.12)
    with pytest.raises(DecodeError, match=r"^5 of 10 decodes .* by 70 % .* factor of 4\.8 or more, not 2$"):
        account.close()
    again, context, account = model(clock, TARGET, real_s=0.12, slow_down=4.8)
    for _ in range(10):
        again.decode([1])
    account.close()


def test_a_little_late_is_not_refused_and_each_text_begins_anew(clock: Clock) -> None:
    target, context, account = model(clock, TARGET)
    for i in range(10):
        context.during = partial(clock.compute, 0.027 if i == 3 else 0.001)
        target.decode([1])
    account.close()
    context.during = lambda: clock.compute(0.03)
    target.decode([1])
    with pytest.raises(DecodeError, match=r"^1 of 1 "):
        account.close()
    assert account.close() is None


@pytest.mark.parametrize(("n_stalls", "stall_s", "is_refused"), [(1, 0.033, False), (2, 0.029, True), (1, 0.07, True)])
def test_one_stall_is_forgiven_unless_it_is_long(
    clock: Clock, n_stalls: int, stall_s: float, *, is_refused: bool
) -> None:
    """Of 10 decodes of 25 ms: other programs may have run."""
    target, context, account = model(clock, TARGET)
    for i in range(10):
        context.during = partial(clock.compute, stall_s if i < n_stalls else 0.001)
        target.decode([1])
    if is_refused:
        with pytest.raises(DecodeError, match=f"^{n_stalls} of 10 "):
            account.close()
    else:
        account.close()


@pytest.mark.parametrize(("aborts", "n_past"), [(True, 2), (False, 3)])
def test_only_some_devices_abort_a_decode(clock: Clock, *, aborts: bool, n_past: int) -> None:
    draft, context, _ = model(clock, DeviceTimes((0.1,), (0.1,), 0.0, aborts=aborts), 0.0)
    draft.decode([1, 2])
    clock.now, clock.meanwhile = 0.0, draft.cancel
    if aborts:
        with pytest.raises(DecodeAborted):
            draft.decode([3])
    else:
        draft.decode([3])
    assert clock.now == pytest.approx(0.05 if aborts else 0.1)
    assert draft.n_past == len(context.tokens) == n_past
    context.during = draft.cancel
    clock.meanwhile = None
    if aborts:
        with pytest.raises(DecodeAborted):
            draft.decode([3])
    else:
        draft.decode([3])


def test_the_end_of_a_text_ends_a_decode_on_any_device(clock: Clock) -> None:
    draft, context, _ = model(clock, DeviceTimes((0.1,), (0.1,), 0.0, aborts=False), 0.0)
    draft.branch(1, 0)
    clock.meanwhile = draft.abort
    with pytest.raises(DecodeAborted):
        draft.decode_each([(0, 1), (1, 1)])
    assert clock.now == pytest.approx(0.05)
    assert draft.n_past == 0
    with pytest.raises(DecodeAborted):
        draft.decode([1])
    draft.resume()
    draft.decode([1])
    assert context.tokens == [1]


def test_devices_slow_each_other_down_while_both_compute(clock: Clock) -> None:
    """A target alone for a third of its decode, beside a draft for the draft's, then alone again."""
    shared = devices(clock)
    account = Account(1.0)
    target, *_ = model(clock, DeviceTimes((0.03,), (0.06,)), 0.0, account=account, shared=shared)
    draft, *_ = model(clock, DeviceTimes((0.01,), (0.02,), 0.0), 0.0, account=account, shared=shared)

    def decode_beside() -> None:
        draft.decode([1])
        assert clock.now == pytest.approx(0.015 + 0.02)

    clock.meanwhile = decode_beside
    target.decode([1])
    # Half of it alone, then a third in 20 ms beside the draft, the rest alone.
    assert clock.now == pytest.approx(0.015 + 0.02 + 0.03 * (1 - 1 / 2 - 1 / 3))


def test_a_round_trip_precedes_each_turn_of_a_draft_on_another_machine(clock: Clock) -> None:
    account = Account(2.0)
    target, *_ = model(clock, TARGET, account=account)
    draft, *_ = model(clock, DeviceTimes((0.008,), (0.008,), 0.0, round_trip_s=0.02), account=account)
    account.on_step = draft.begin_turn
    draft.set_threads(1, 1)
    assert clock.waits == []
    target.decode([1])
    clock.waits.clear()
    draft.set_threads(1, 1)
    draft.set_threads(1, 1)
    assert clock.waits == [pytest.approx(0.04)]
    target.decode([1])
    clock.waits.clear()
    clock.meanwhile = draft.abort
    draft.set_threads(1, 1)
    assert len(clock.waits) == 1, "not waited for again"


def test_what_python_does_between_decodes_of_the_target(clock: Clock) -> None:
    account = Account(1.0)
    target, *_ = model(clock, TARGET, account=account)
    draft, *_ = model(clock, DRAFT, real_s=0.004, account=account)
    assert account.close() is None
    for _ in range(3):
        target.decode([1])
        clock.compute(0.0001)
        draft.decode([1])
        clock.compute(0.0002)
    beside = threading.Thread(target=draft.decode, args=([1],))
    beside.start()
    beside.join()
    assert account.close() == pytest.approx(300)
    target.decode([1])
    assert account.close() is None, "what was between the texts does not count"
