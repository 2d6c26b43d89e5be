"""Ctrl-C and SIGTERM: the first ends a run in order, the second at once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from duo.cli.terminal.interrupts import on_interrupt
from tests.command import ONE_EACH, Argument, duo, models
from tests.process.cli.terminal import CTRL_C, Terminal

# Decodes never return and the interruption is announced: whatever ends the process, it is not the run.
HANGS = """
import os, time
from duo.engine.stream import Stream
from duo.llama.context import Context
close, decode, n_decodes = Stream.close, Context.decode, 0
def announce(self):
    close(self)
    os.write(1, b"asked to stop")  # another thread may be in the middle of a print
def hang(self, *arguments, **more):
    global n_decodes
    n_decodes += 1
    if n_decodes > 3:
        print("hanging", flush=True)
        time.sleep(3600)
    return decode(self, *arguments, **more)
Stream.close, Context.decode = announce, hang
"""

# One signal while the first model is loaded: at {share} of it.
SIGNAL_WHILE_LOADING = """
import os
from duo.llama.model import Model
init, told = Model.__init__, []
def interrupted(self, config, progress):
    def report(share):
        if share >= {share} and not told:
            told.append(os.kill(os.getpid(), {number}))
        return progress(share)
    init(self, config, report)
Model.__init__ = interrupted
"""


def _endless(demo_pair: tuple[Path, Path]) -> list[Argument]:
    target, draft = demo_pair
    return [*models(target, draft), "-p", "Count: 1 2 3 4", "-n", "-1", "--ignore-eos", *ONE_EACH]


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_stops_in_order(demo_pair: tuple[Path, Path], number: signal.Signals, drafted: bool) -> None:
    options = ("--color", "never", *(() if drafted else ("--draft", "0")))
    with Terminal(*_endless(demo_pair), *options) as terminal:
        terminal.read_until(b" 5")
        if number == signal.SIGINT:
            terminal.type(CTRL_C)
        else:
            terminal.process.terminate()
        assert terminal.finish() == 128 + number
        said = terminal.stderr
    assert b" 5" in terminal.shown
    assert "stopped: interrupted" in said
    assert said.splitlines()[-1].startswith("tokens: ")
    assert "Traceback" not in said


def test_the_text_so_far_is_kept_whole(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    with Terminal(*_endless(demo_pair), "--exact", "--color", "never", "--json", report) as terminal:
        terminal.read_until(b" 5")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
        last = terminal.stderr.splitlines()[-1]
    n_tokens = int(last.split()[1])
    assert duo(*_endless(demo_pair), "--exact", "-n", str(n_tokens)).stdout == terminal.shown
    assert f'"tokens": {n_tokens},' in report.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_ends_at_once(demo_pair: tuple[Path, Path], number: signal.Signals) -> None:
    with Terminal(*_endless(demo_pair), "--draft", "0", before=HANGS) as terminal:
        terminal.read_until(b"hanging")
        terminal.process.send_signal(number)
        terminal.read_until(b"asked to stop")
        terminal.process.send_signal(number)
        assert terminal.finish() == 128 + number
        assert terminal.stderr == ""


def test_a_long_prompt_is_not_waited_for(demo_pair: tuple[Path, Path]) -> None:
    prompt = ("-p", "one two three four " * 400, "-ub", "32", "-n", "4")
    with Terminal("-m", demo_pair[0], *prompt, *ONE_EACH, stderr_too=True) as terminal:
        terminal.read_until(b"reading the prompt")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"stopped: interrupted" in terminal.shown
    assert b"\ntokens: 0 tps: 0.000\n" in terminal.shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("share", [0, 1])
def test_while_a_model_is_loaded(demo_pair: tuple[Path, Path], number: signal.Signals, share: int) -> None:
    arguments = ("-m", demo_pair[0], "-p", "Count: 1 2 3 4", "-n", "4", "-t", "1")
    run = duo(*arguments, before=SIGNAL_WHILE_LOADING.format(share=share, number=int(number)))
    assert (run.status, run.stdout, run.stderr) == (128 + number, b"", "duo: interrupted while loading\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_takes_no_lock(number: signal.Signals) -> None:
    """The code that a signal interrupts may hold any lock, also one that is needed to stop."""
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            stopped.set()

    with on_interrupt(stop) as interrupt:
        with lock:
            signal.raise_signal(number)
            assert interrupt.signal == number, "the handler has run, on this thread"
            assert not stopped.is_set()
        assert stopped.wait(60)
    assert interrupt.status == 128 + number


def test_without_a_signal_nothing_is_stopped() -> None:
    stopped = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    with on_interrupt(stopped.set) as interrupt:
        pass
    assert not stopped.is_set()
    assert interrupt.status == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert "duo-signals" not in {thread.name for thread in threading.enumerate()}
