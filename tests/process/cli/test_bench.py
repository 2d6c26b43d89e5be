"""`duo bench` with processes: other programs, Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import ONE_EACH, ROOT, duo, environment, models
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.unit.bench.recorded import recorded
from tests.unit.cli import runner

SHORT = ("-n", "16", "-r", "1", *ONE_EACH)
PLAIN = (*SHORT, "--modes", "plain", "-o", "json")
FEW = ("--categories", "chat,code")  # whose prompts fit the tiny models
PROGRAMS = ROOT / "build" / "peers" / "bin"

# Code for `before`: says when a batch is decoded, which takes its time.
BATCHES = """
import sys, time
from duo.llama.context import Context
decode = Context.decode
def telling(self, tokens, n_rows=1):
    if len(tokens) > 100:
        print(f"<{len(tokens)}>", file=sys.stderr, flush=True)
        time.sleep(0.5)
    return decode(self, tokens, n_rows)
Context.decode = telling
"""


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    """A program that writes what llama-completion has written, notes its calls, and fails from the fourth on."""
    for name in ("completion.out", "completion.err"):
        (tmp_path / name).write_text(recorded(name), encoding="utf-8")
    program = tmp_path / "replay"
    program.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$@" >>asked\n[ $(wc -l <asked) -gt 3 ] && exit 5\n'
        "cat completion.out\ncat completion.err >&2\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


def test_a_program_is_compared(tiny: Path, replay: Path) -> None:
    run = runner.duo("bench", "-m", tiny, *PLAIN, "--peers", f"llama-completion={replay}", "-n", "24")
    assert run.status == 0, run.stderr
    document = json.loads(run.text)
    peer = document["rows"][1]
    assert (peer["mode"], peer["tokens_per_s"], peer["threads"]) == ("llama-completion", 78.54, "1")
    assert (peer["accept_rate"], "first_token_s" in peer) == (None, False), "it does not report them"
    assert peer["same_text"] is False
    assert document["peers"] == {"llama-completion": {"path": str(replay), "version": None}}
    version, warm_up, asked = (replay.parent / "asked").read_text().splitlines()
    assert version == "--version"
    assert " -n 16 " in warm_up
    assert " -n 24 " in asked


def test_a_program_that_fails_later_leaves_what_was_measured(tiny: Path, replay: Path) -> None:
    run = runner.duo("bench", "-m", tiny, *PLAIN, "--peers", f"llama-completion={replay}", "-r", "4", *FEW)
    assert run.status == 1
    assert run.stderr.splitlines()[-1] == "duo: error: llama-completion exited with 5: no message"
    document = json.loads(run.text)
    assert document["complete"] is False
    peer = document["rows"][1]
    assert (peer["mode"], peer["runs"] + peer["looping_runs"]) == ("llama-completion", 1)


def test_a_program_on_the_path_is_skipped_if_it_fails(tiny: Path, tmp_path: Path) -> None:
    program = tmp_path / "llama-completion"
    program.write_text("#!/bin/sh\necho no such thing >&2\nexit 4\n", encoding="utf-8")
    program.chmod(0o755)
    run = runner.duo("bench", "-m", tiny, *PLAIN, env={"PATH": f"{tmp_path}:{environment()['PATH']}"})
    assert run.status == 0, run.stderr
    assert "duo: warning: llama-completion exited with 4: no such thing: skipped" in run.warnings
    peer = json.loads(run.text)["rows"][1]
    assert (peer["mode"], peer["tokens_per_s"], peer["same_text"]) == ("llama-completion", None, None)
    # Asked for by name, it has to run.
    run = runner.duo("bench", "-m", tiny, *PLAIN, "--peers", f"llama-completion={program}")
    assert run.stderr.splitlines()[-1] == "duo: error: llama-completion exited with 4: no such thing"
    assert (run.status, run.stdout) == (1, b"")


@pytest.mark.skipif(not PROGRAMS.is_dir(), reason="benchmarks/peers.sh has not built llama.cpp's programs")
def test_llama_cpp_s_own_programs(demo_pair: tuple[Path, Path]) -> None:
    names = ("llama-completion", "llama-cli", "llama-speculative-simple")
    built = [name for name in names if (PROGRAMS / name).exists()]
    programs = ",".join(f"{name}={PROGRAMS / name}" for name in built)
    more = ("--exact", "-r", "2", "--categories", "chat,summary", "--peers", programs)
    run = duo("bench", *models(*demo_pair), *PLAIN, *more)
    assert run.status == 0, run.stderr
    rows = json.loads(run.text)["rows"]
    assert [row["mode"] for row in rows] == ["plain", *built]
    assert all(row["tokens_per_s"] > 0 and row["prompt_tokens_per_s"] > 0 for row in rows)


def test_after_ctrl_c_there_is_a_table_of_what_was_measured(tiny: Path) -> None:
    arguments = ("bench", *models(tiny, tiny), "-n", "64", "-r", "1000", "--peers", "none", *FEW, *ONE_EACH)
    with Terminal(*arguments, stderr_too=True) as terminal:
        terminal.read_until(b"1/1000 chat")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    said, _, table = terminal.shown.decode().partition("duo: interrupted after ")
    n_texts = sum("/1000 " in line for line in said.splitlines())
    assert table.startswith(f"{n_texts} of 4000 texts")
    lines = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| ")]
    runs = lines[0].index("runs")
    n_counted = sum(int(line[runs]) for line in lines[2:6])
    assert n_counted <= n_texts, "those that loop do not count"
    assert json.loads(table.partition("```json")[2].rpartition("```")[0])["complete"] is False


def test_ctrl_c_does_not_wait_for_a_long_prompt(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("word " * 4000, encoding="utf-8")
    arguments = ("bench", "-m", demo_pair[0], "--prompts", prompts, "--modes", "plain", *SHORT, "--peers", "none")
    with Terminal(*arguments, stderr_too=True, before=BATCHES) as terminal:
        terminal.read_until(b"<512>")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert terminal.shown.count(b"<512>") < 7, "that many are in 4000 tokens"
