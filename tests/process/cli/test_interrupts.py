"""Ctrl-C and SIGTERM: the first stops a run in order, the second at once. Full disks, closed and broken pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, assert_refused, command, duo, environment, models
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.unit.cli import runner
from tests.unit.cli.fake_openai import HELD, FakeServer, Reply, piece
from tests.unit.cli.reference import greedy_text

needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")

# Decodes never return and the interruption is announced: whatever ends the process, it is not the run.
HANGS = """
import os, threading
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
        threading.Event().wait()
    return decode(self, *arguments, **more)
Stream.close, Context.decode = announce, hang
"""


def endless(demo_pair: tuple[Path, Path]) -> list[Argument]:
    options = ("-p", "Count: 1 2 3 4", "-n", "-1", "--ignore-eos", "--exact", "--color", "never", *ONE_EACH)
    return [*models(*demo_pair), *options]


def test_ctrl_c_keeps_the_text_so_far(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    report, trace = tmp_path / "run.json", tmp_path / "run.trace"
    with Terminal(*endless(demo_pair), "--json", report, "--trace", trace) as terminal:
        terminal.read_until(b" 5")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
        said = terminal.stderr
    assert "stopped: interrupted" in said
    assert "Traceback" not in said
    n_tokens = int(said.splitlines()[-1].removeprefix("tokens: ").split()[0])
    assert runner.duo(*endless(demo_pair), "-n", str(n_tokens)).stdout == terminal.shown
    assert json.loads(report.read_text())["generation"]["tokens"] == n_tokens
    assert json.loads(trace.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_process_at_once(tiny: Path, number: signal.Signals) -> None:
    with Terminal("-m", tiny, "-p", "the cat", "-t", "1", "--color", "never", before=HANGS) as terminal:
        terminal.read_until(b"hanging")
        terminal.read_until(greedy_text(tiny, "the cat", 1))  # by now the signals are handled
        terminal.process.send_signal(number)
        terminal.read_until(b"asked to stop")
        terminal.process.send_signal(number)
        assert terminal.finish() == 128 + number
        assert terminal.stderr == ""


def test_ctrl_c_during_a_long_prefill(demo_pair: tuple[Path, Path]) -> None:
    prompt = ("-p", "one two three four " * 400, "-ub", "32", "-n", "4")
    with Terminal("-m", demo_pair[0], *prompt, *ONE_EACH, stderr_too=True, size=(100, 24)) as terminal:
        terminal.read_until(b"the prompt")  # the progress bar
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"stopped: interrupted" in terminal.shown
    assert b"\ntokens: 0 tps: 0.000\n" in terminal.shown


def test_a_killed_run_leaves_a_readable_trace(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    arguments = command(*endless(demo_pair), "--trace", trace)
    with subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while not trace.exists() or trace.read_bytes().count(b'"commit"') < 10:
                assert process.poll() is None
                time.sleep(0.05)
        finally:
            process.kill()
    json.loads(trace.read_text() + "]")


# Readers that stop reading


def test_a_broken_pipe_ends_a_run_silently(demo_pair: tuple[Path, Path]) -> None:
    process = subprocess.Popen(
        command(*endless(demo_pair)), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1) == b" "
    process.stdout.close()
    _, said = process.communicate(timeout=300)
    said = said.removeprefix(b"duo: this model has a chat template: --chat uses it\n")
    assert (process.returncode, said) == (0, b"")


def test_a_broken_pipe_ends_a_chat_and_its_request() -> None:
    with FakeServer(Reply(piece("x" * 1_000_000), ending=HELD)) as server:
        process = subprocess.Popen(
            command("chat", server.url), env=environment({"PYTHONUNBUFFERED": "1"}), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with process:
            process.stdin.write(b"hi")
            process.stdin.close()
            assert process.stdout.read(1) == b"x"
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0
        assert server.left.wait(60)


def test_a_closed_stdout_is_an_error(tiny: Path) -> None:
    arguments = command("-m", tiny, "-p", "x", "-n", "2", "-t", "1")
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *arguments]
    done = subprocess.run(closed, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "duo: error: cannot write the text: Bad file descriptor"


def test_a_terminal_that_is_gone_leaves_the_statistics(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    with Terminal(*endless(demo_pair), "--json", report) as terminal:
        terminal.read_until(b" 5")
        terminal.hang_up()
        assert terminal.process.wait(300) == 129
    assert json.loads(report.read_text())["generation"]["stop"] == "interrupted"


# What is done to the stderr of a process before it starts.
UNWRITABLE = {
    "closed": "import os; os.close(2)",
    "full": "import os; os.dup2(os.open('/dev/full', 1), 2)",
    "broken": "import os; ends = os.pipe(); os.dup2(ends[1], 2); os.close(ends[0]); os.close(ends[1])",
}


def test_a_stderr_that_the_parent_process_closed(tiny: Path) -> None:
    """No file that is opened later becomes standard error, to which llama.cpp writes."""
    arguments = command("-m", tiny, "-p", "x", "-n", "4", "-t", "1", "-v")
    closed = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *arguments]
    done = subprocess.run(closed, env=environment(), stdout=subprocess.PIPE, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, runner.duo("-m", tiny, "-p", "x", "-n", "4", "-t", "1").stdout)


@needs_full_disk
def test_a_disk_that_is_full_for_the_text(tiny: Path) -> None:
    run = duo("-m", tiny, "-p", "x", "-n", "2", "-t", "1", before="import os; os.dup2(os.open('/dev/full', 1), 1)")
    assert_refused(run, "No space left on device")
