"""Signal handlers: the first signal stops in order, and a handler never waits for a lock."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duo.cli.terminal.interrupts import interrupts_raise, on_interrupt
from duo.llama.model import Model
from tests.unit.cli.runner import duo


def test_a_handler_takes_no_lock() -> None:
    """The code that a signal interrupts may hold any lock, also one that is needed to stop."""
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            stopped.set()

    with on_interrupt(stop) as interrupt:
        with lock:
            signal.raise_signal(signal.SIGTERM)
            assert interrupt.signal == signal.SIGTERM, "the handler has run, on this thread"
            assert not stopped.is_set()
        assert stopped.wait(60)
    assert interrupt.status == 128 + signal.SIGTERM


@pytest.mark.parametrize("share", [0, 1])
def test_a_signal_while_a_model_is_loaded(tiny: Path, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    """One signal, at the beginning of loading or at its end."""
    init = Model.__init__

    def interrupted(self: Model, config: Any, progress: Any) -> None:
        sent = iter((False,))

        def report(done: float) -> bool:
            if done >= share and not next(sent, True):
                os.kill(os.getpid(), signal.SIGINT)
            return bool(progress(done))

        init(self, config, report)

    monkeypatch.setattr(Model, "__init__", interrupted)
    run = duo("-m", tiny, "-p", "the cat", "-n", "4", "-t", "1")
    assert (run.status, run.stdout, run.stderr) == (130, b"", "duo: interrupted while loading\n")


# What remains of Python's own KeyboardInterrupt


@pytest.mark.parametrize("when", ["before the first handler", "after the last handler"])
def test_no_thread_waits_forever_whenever_the_signal_comes(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        if handler is not signal.default_int_handler and when.startswith("before"):
            raise KeyboardInterrupt
        before = install(number, handler)
        if handler is signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)
        return before

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt), on_interrupt(lambda: None):
        pass
    assert "duo-signals" not in {thread.name for thread in threading.enumerate()}
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == (
        signal.SIG_DFL, signal.default_int_handler,
    )  # fmt: skip


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The statuses with which the process would have ended. The handler of SIGINT is restored."""
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    before = signal.getsignal(signal.SIGINT)
    yield statuses
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_becomes_another_exception_is_still_one(ended: list[int]) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("as by a class whose attributes were being set up") from None

    with pytest.raises(KeyboardInterrupt), interrupts_raise():
        interrupted()
    assert ended == [130], "by the second"


def test_an_interrupt_that_python_cannot_raise_ends_the_process(ended: list[int]) -> None:
    class Callback:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with interrupts_raise():
        Callback()
    assert ended == [130]


@pytest.mark.usefixtures("ended")
def test_a_job_in_the_background_goes_on_ignoring_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_raise():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
