"""`duo bench` and `duo tune`: real measurements, other programs and their processes, Ctrl-C."""

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from duo.bench.contestants import run_process
from duo.diagnose.measure import Interrupted
from tests.command import ONE_EACH, Argument, models
from tests.gguf_files import tiny_llama
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.serving import wait_until
from tests.unit.bench.recorded import recorded
from tests.unit.cli import runner

# Code for `before`: a slow target, and no other program computes.
SLOW = """
from tests.child import slow_target
from duo.diagnose import measure
slow_target(0.003)
measure.other_cpu_use = lambda _: 0.0
"""


def test_a_program_is_compared(tiny: Path, tmp_path: Path) -> None:
    """It writes what llama-completion has written, and notes how it was called."""
    for name in ("completion.out", "completion.err"):
        (tmp_path / name).write_text(recorded(name), encoding="utf-8")
    program = tmp_path / "replay"
    program.write_text(f'#!/bin/sh\ncd {tmp_path}; echo "$@" >>asked; cat completion.out; cat completion.err >&2\n')
    program.chmod(0o755)
    options = ("-r", "1", "-n", "24", *ONE_EACH, "--modes", "plain", "-o", "json")
    run = runner.duo("bench", "-m", tiny, *options, "--peers", f"llama-completion={program}")
    assert run.status == 0, run.stderr
    document = json.loads(run.text)
    peer = document["rows"][1]
    assert (peer["mode"], peer["tokens_per_s"], peer["threads"]) == ("llama-completion", 78.54, "1")
    assert peer["accept_rate"] is None, "it does not report it"
    assert peer["first_token_s"] > 0
    assert peer["same_text"] is False
    assert document["peers"] == {"llama-completion": {"path": str(program), "version": None}}
    version, warm_up, asked = (tmp_path / "asked").read_text().splitlines()
    assert version == "--version"
    assert " -n 16 " in warm_up
    assert " -n 24 " in asked


def test_after_ctrl_c_there_is_a_table_of_what_was_measured(tiny: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ("-n", "64", "-r", "1000", "--peers", "none", "--categories", "chat,code", "--json", report, *ONE_EACH)
    with Terminal("bench", *models(tiny, tiny), *arguments) as terminal:
        terminal.read_until(b"1/1000 chat")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    said, _, table = terminal.shown.decode().partition("duo: interrupted after ")
    n_texts = sum("/1000 " in line for line in said.splitlines())
    assert table.startswith(f"{n_texts} of 4000 texts")
    lines = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| ")]
    runs = lines[0].index("runs")
    assert sum(int(line[runs]) for line in lines[2:6]) <= n_texts, "those that loop do not count"
    assert json.loads(report.read_text())["complete"] is False


# Processes of programs

WRITE_PID = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '.'); time.sleep(600)"


def pid_in(path: Path) -> int:
    """That of the program, as soon as it has written it."""
    wait_until(lambda: path.exists() and path.read_text().endswith("."))
    return int(path.read_text()[:-1])


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not psutil.pid_exists(pid))


def test_the_output_of_a_process_without_variables_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "3")
    code = "import os, sys; print('text' * 100_000); sys.exit(str(any(n[:5] == 'LLAMA' for n in os.environ)))"
    ended = run_process([sys.executable, "-c", code], threading.Event())
    assert (len(ended.stdout), ended.stderr, ended.returncode) == (400_001, "False\n", 1)


def test_what_a_script_has_started_ends_with_it(tmp_path: Path) -> None:
    stop = threading.Event()
    command = ["sh", "-c", '"$@"; echo', "sh", sys.executable, "-c", WRITE_PID, str(tmp_path / "pid")]
    with ThreadPoolExecutor() as pool:
        pool.submit(pid_in, tmp_path / "pid").add_done_callback(lambda _: stop.set())
        with pytest.raises(Interrupted):
            run_process(command, stop)
    wait_for_end(pid_in(tmp_path / "pid"))


def test_a_program_ends_with_a_killed_benchmark(tmp_path: Path) -> None:
    start = "import sys, threading; from duo.bench.contestants import run_process; run_process({}, threading.Event())"
    program = [sys.executable, "-c", WRITE_PID, str(tmp_path / "pid")]
    with subprocess.Popen([sys.executable, "-c", start.format(program)]) as bench:
        pid = pid_in(tmp_path / "pid")
        wait_until(lambda: len(psutil.Process(bench.pid).children()) == 2)  # the program, and what ends it
        bench.send_signal(signal.SIGKILL)
    wait_for_end(pid)


# duo tune


def test_ctrl_c_leaves_a_table_of_the_drafts_that_were_measured(tiny: Path, tmp_path: Path) -> None:
    target, report = tmp_path / "target.gguf", tmp_path / "figures.json"
    target.write_bytes(tiny.read_bytes() + bytes(4 * tiny.stat().st_size))
    drafts = [tiny_llama(tmp_path / name) for name in ("first.gguf", "second.gguf")]
    env = {"DUO_CACHE": str(tmp_path / "cache"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    arguments: list[Argument] = ["tune", "-m", target, *drafts, "-t", "1", "-n", "8", "--json", report]
    with Terminal(*arguments, before=SLOW, env=env) as terminal:
        terminal.read_until(b"draft 2 of 2: the target on")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"duo: interrupted: the table has what was measured" in terminal.shown
    names = {row["name"] for row in json.loads(report.read_text())["ranking"]}
    assert names == {"first.gguf", "lookup", "none"}
