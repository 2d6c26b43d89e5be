"""llama.cpp's programs: what is read from what they really wrote, and what happens when one fails."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from duo.bench.contestant import Interrupted, Job, Run
from duo.bench.peers import (
    ParseError,
    Program,
    cli_command,
    completion_command,
    parse_cli,
    parse_completion,
    parse_speculative,
    speculative_command,
    version,
)
from tests.unit.bench.recorded import JOB, N_TOKENS, PROMPT, TEXT, cost, recorded

NEVER = threading.Event()


def test_what_llama_completion_says() -> None:
    run = parse_completion(JOB, cost(recorded("completion.out"), recorded("completion.err")))
    assert run == Run(N_TOKENS, 78.54, TEXT, prompt_tokens_per_s=256.51, target_ms=12.73)


def test_what_llama_cli_says() -> None:
    assert parse_cli(JOB, cost(recorded("cli.out"))) == Run(None, 72.9, TEXT, prompt_tokens_per_s=235.1)


def test_llama_cli_shows_the_beginning_of_a_long_prompt() -> None:
    said = recorded("cli.out")
    for prompt in ("word " * 130, "x" * 499 + "é and more"):
        shown = prompt.encode()[:500].decode("utf-8", "replace") + " ... (truncated)"
        job = replace(JOB, prompt=prompt)
        assert parse_cli(job, cost(said.replace(PROMPT, shown))).text == TEXT


def test_what_llama_speculative_simple_says() -> None:
    run = parse_speculative(JOB, cost(recorded("speculative.out"), recorded("speculative.err")))
    more = " they could make a"  # it may write a few tokens more
    assert run == Run(28, 42.466, TEXT + more, prompt_tokens_per_s=179.879, n_verified=32, n_accepted=17)


def test_a_program_says_its_version(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'version: 7 (abc)' >&2\necho built >&2\n", encoding="utf-8")
    program.chmod(0o755)
    assert version(program) == "7 (abc)"
    assert version(Path(sys.executable)) is None  # its answer is of another kind
    assert version(tmp_path) is None


def test_nothing_may_have_been_drafted() -> None:
    run = parse_speculative(JOB, cost(recorded("speculative.out"), recorded("speculative-none.err")))
    assert (run.n_verified, run.n_accepted) == (0, 0)


@pytest.mark.parametrize("parse", [parse_completion, parse_cli, parse_speculative])
def test_output_of_another_kind_is_an_error(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(ParseError, match=r"no .* in: …'help'"):
        parse(JOB, cost("help", "help"))


def test_how_they_are_called() -> None:
    common = ["-m", "target.gguf", "-f", "prompt.txt", "-n", "24", "-c", "256", "--ignore-eos"]
    assert completion_command(Path("a"), JOB, 2)[1:10] == common
    assert {"-no-cnv", "--no-escape"} < set(completion_command(Path("a"), JOB, 2))
    assert cli_command(Path("a"), JOB, 2)[1:10] == common
    drafting = speculative_command(Path("a"), JOB, 2, 1, 3)
    assert drafting[1:10] == common
    for name, value in (("-t", "2"), ("-td", "1"), ("-md", "draft.gguf"), ("--spec-draft-n-max", "3")):
        assert drafting[drafting.index(name) + 1] == value


def program(code: str) -> Program:
    def command(_: Job) -> list[str]:
        return [sys.executable, "-c", code]

    return Program("llama-completion", command, parse_completion)


def test_a_program_is_run_and_read(tmp_path: Path) -> None:
    for name in ("completion.out", "completion.err"):
        (tmp_path / name).write_text(recorded(name), encoding="utf-8")
    code = f"""
import sys; from pathlib import Path; folder = Path({str(tmp_path)!r})
sys.stdout.write((folder / "completion.out").read_text()); sys.stderr.write((folder / "completion.err").read_text())
"""
    assert program(code).write(JOB, NEVER).text == TEXT
    with pytest.raises(ParseError, match="llama-completion stopped after 24 of 25 tokens"):
        program(code).write(replace(JOB, n_tokens=25), NEVER)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; print('no such file\\n', file=sys.stderr); sys.exit(3)", "exited with 3: no such file"),
        ("import sys; sys.exit(1)", "exited with 1: it said nothing"),
        ("print('a new format')", "cannot read its output: no 'prompt eval"),
    ],
)
def test_a_program_that_fails_is_named(code: str, said: str) -> None:
    with pytest.raises(ParseError) as raised:
        program(code).write(JOB, NEVER)
    assert f"llama-completion{' ' if said.startswith('exited') else ': '}{said}" in str(raised.value)


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    def command(_: Job) -> list[str]:
        return [str(tmp_path)]

    with pytest.raises(ParseError, match=r"llama-cli: cannot run .*: Permission denied"):
        Program("llama-cli", command, parse_cli).write(JOB, NEVER)


def test_a_program_ends_when_the_benchmark_is_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        program("import time; time.sleep(600)").write(JOB, stop)
