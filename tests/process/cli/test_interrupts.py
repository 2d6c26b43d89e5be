"""Ctrl-C and SIGTERM: the first stops a run in order, the second at once. Full disks, closed and broken pipes."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, Run, assert_refused, command, environment, gated_target, models, run
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.serving import Served, wait_until
from tests.unit.cli import runner
from tests.unit.cli.fake_openai import HELD, FakeServer, Reply, piece
from tests.unit.cli.reference import greedy_text

# The text is not stopped, but that is announced: another thread may be in the middle of a print.
DEAF = "import os; from duo.engine.stream import Stream; Stream.close = lambda _: os.write(1, b'asked to stop')\n"


def endless(*paths: Path) -> list[Argument]:
    options = ("-p", "Count: 1 2 3 4", "-n", "-1", "--ignore-eos", "--exact", "--color", "never", *ONE_EACH)
    return [*models(*paths), *options]


def test_ctrl_c_keeps_the_text_so_far(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    report, trace = tmp_path / "run.json", tmp_path / "run.trace"
    with Terminal(*endless(*demo_pair), "--json", report, "--trace", trace) as terminal:
        terminal.read_until(b" 5 6")  # " 5" may be in the progress of loading
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    text, _, said = terminal.shown.decode().partition("\nspeed ")
    assert "stopped: interrupted" in said
    assert "Traceback" not in said
    n_tokens = int(said.splitlines()[-1].removeprefix("tokens: ").split()[0])
    assert text.endswith(runner.duo(*endless(*demo_pair), "-n", str(n_tokens)).text)
    assert json.loads(report.read_text())["generation"]["tokens"] == n_tokens
    assert json.loads(trace.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_process_at_once(tiny: Path, tmp_path: Path, number: signal.Signals) -> None:
    """A decode never returns: whatever ends the process, it is not the run."""
    before = DEAF + gated_target(tmp_path / "gate")
    with Terminal("-m", tiny, "-p", "the cat", "-t", "1", "--color", "never", before=before) as terminal:
        terminal.read_until(greedy_text(tiny, "the cat", 2))  # by now the signals are handled
        terminal.process.send_signal(number)
        terminal.read_until(b"asked to stop")
        terminal.process.send_signal(number)
        assert terminal.finish() == 128 + number
    assert b"duo: " not in terminal.shown
    assert b"Traceback" not in terminal.shown


def test_a_killed_run_leaves_a_readable_trace(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """With a demo model, whose context is not full before the kill."""
    trace = tmp_path / "trace.json"
    with Served(*endless(demo_pair[1]), "--trace", trace) as endless_run:
        wait_until(lambda: trace.exists() and trace.read_bytes().count(b'"commit"') > 9)
        endless_run.send(signal.SIGKILL)
        endless_run.finish()
    json.loads(trace.read_text() + "]")


# Readers that stop reading


def test_a_broken_pipe_ends_a_run_silently(demo_pair: tuple[Path, Path]) -> None:
    arguments = command(*endless(demo_pair[1]))
    with subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) == b" "
        process.stdout.close()
        _, said = process.communicate(timeout=300)
    said = said.removeprefix(b"duo: this model has a chat template: --chat uses it\n")
    assert (process.returncode, said) == (0, b"")


def test_a_broken_pipe_ends_a_chat_and_its_request() -> None:
    chat = 'echo hi | { "$@"; echo $? >&2; } | head -c 1'
    with FakeServer(Reply(piece("x" * 1_000_000), ending=HELD)) as server:
        done = shell(chat, "chat", server.url)
        assert (done.stdout, done.stderr) == (b"x", "0\n")
        assert server.left.wait(60)


LATE = """
import signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
def deliver():
    while signal.SIGHUP not in signal.sigpending():
        time.sleep(0.01)
    time.sleep(0.2)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
threading.Thread(target=deliver, daemon=True).start()
"""


@pytest.mark.parametrize("before", ["", LATE], ids=["", "the signal after a failed write"])
def test_a_terminal_that_is_gone_leaves_the_statistics(
    demo_pair: tuple[Path, Path], tmp_path: Path, before: str
) -> None:
    report = tmp_path / "run.json"
    with Terminal(*endless(demo_pair[1]), "--json", report, before=before) as terminal:
        terminal.read_until(b" 5 6")  # " 5" may be in the progress of loading
        terminal.hang_up()
        assert terminal.process.wait(300) == 129
    assert json.loads(report.read_text())["generation"]["stop"] == "interrupted"


def shell(line: str, *arguments: Argument) -> Run:
    """Run a line of bash, in which "$@" is the command."""
    return run("bash", "-c", line, "bash", *command(*arguments))


def test_closed_streams_and_a_full_disk(tiny: Path) -> None:
    arguments = ("-m", tiny, "-p", "x", "-n", "4", "-t", "1")
    for given in (arguments, ("--version",)):
        closed = shell('"$@" >&-', *given)
        assert (closed.status, closed.stdout) == (1, b"")
        assert closed.stderr.splitlines()[-1] == "duo: error: cannot write the text: Bad file descriptor"
    # No file that is opened later becomes standard error, to which llama.cpp writes.
    mute = shell('"$@" 2>&-', *arguments, "-v")
    assert (mute.status, mute.stdout) == (0, runner.duo(*arguments).stdout)
    if Path("/dev/full").exists():
        assert_refused(shell('"$@" >/dev/full', *arguments), "No space left on device")


def test_standard_input_without_an_end() -> None:
    for arguments in (("-m", "missing.gguf", "-f", "-"), ("chat", "http://127.0.0.1:9")):
        assert_refused(shell('cat /dev/zero | "$@"', *arguments), "standard input: it has more than 64 MiB")
