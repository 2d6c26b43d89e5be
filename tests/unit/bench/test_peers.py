"""llama.cpp's programs: how they are called, and what is read from recorded output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duo.bench.contestant import Job, ParseError, Run
from duo.bench.peers import SPECULATIVE, Drafting, Program, checked, program_options
from duo.bench.process import Cost
from duo.config import EngineConfig, ModelConfig
from tests.unit.bench.recorded import JOB, N_TOKENS, PROMPT, TEXT, cost, recorded

COMPLETION, CLI = "llama-completion", "llama-cli"


def parse(name: str, found: Cost, job: Job = JOB) -> Run:
    return checked(name, job, lambda: Program(name, Path(name), 1).parse(job, found))


def test_recorded_output_is_parsed() -> None:
    run = parse(COMPLETION, cost(recorded("completion.out"), recorded("completion.err")))
    assert run == Run(N_TOKENS, 78.54, TEXT, prompt_tokens_per_s=256.51, target_ms=12.73)
    assert parse(CLI, cost(recorded("cli.out"))) == Run(None, 72.9, TEXT, prompt_tokens_per_s=235.1), "no count"
    more = TEXT + " they could make a"  # it may write a few tokens more
    run = parse(SPECULATIVE, cost(recorded("speculative.out"), recorded("speculative.err")))
    assert run == Run(28, 42.466, more, prompt_tokens_per_s=179.879, n_verified=32, n_accepted=17)
    run = parse(SPECULATIVE, cost(recorded("speculative.out"), recorded("speculative-none.err")))
    assert (run.n_verified, run.n_accepted) == (0, 0)


def test_llama_cli_truncates_the_echo_of_a_long_prompt() -> None:
    for prompt in ("word " * 130, "x" * 499 + "é and more"):
        shown = prompt.encode()[:500].decode("utf-8", "replace") + " ... (truncated)"
        output = cost(recorded("cli.out").replace(PROMPT, shown))
        assert parse(CLI, output, replace(JOB, prompt=prompt)).text == TEXT


@pytest.mark.parametrize("name", [COMPLETION, CLI, SPECULATIVE])
def test_an_unknown_format_or_a_short_text_is_an_error(name: str) -> None:
    with pytest.raises(ParseError, match=f"{name}: cannot read its output: no .* in: …'help'"):
        parse(name, cost("help", "help"))
    with pytest.raises(ParseError, match=f"{name} stopped after 24 of 25 tokens"):
        checked(name, replace(JOB, n_tokens=25), lambda: Run(24, 1.0, ""))


@pytest.mark.parametrize("name", [COMPLETION, CLI, SPECULATIVE])
def test_command_lines(name: str) -> None:
    command = Program(name, Path("a"), 2, Drafting(1, 3) if name == SPECULATIVE else None, ["-fa", "on"]).command(JOB)
    assert command[:10] == ["a", "-m", "target.gguf", "-f", "prompt.txt", "-n", "24", "-c", "256", "--ignore-eos"]
    assert {"--no-escape", "-fa"} < set(command)
    assert ("-no-cnv" in command) == (name == COMPLETION)
    wanted = {"--temp": "0", "-t": "2"}
    if name == SPECULATIVE:
        wanted |= {"-td": "1", "-md": "draft.gguf", "--spec-draft-n-max": "3", "--spec-draft-p-min": "0"}
    assert {option: command[command.index(option) + 1] for option in wanted} == wanted


TARGET = ModelConfig(
    Path("a.gguf"), n_gpu_layers=7, devices=("CUDA0", "CUDA1"), split_mode="row", tensor_split=(3, 1), main_gpu=1
)
DRAFT = ModelConfig(Path("b.gguf"), n_gpu_layers=-1)
CACHE = ["-fa", "on", "-ctk", "q8_0", "-ctv", "f16"]


def test_programs_are_told_where_the_layers_go() -> None:
    config = EngineConfig(flash_attn="on", type_k="q8_0")
    assert program_options(config, TARGET, DRAFT, has_gpus=False) == ([*CACHE, "-dev", "none"], ["-devd", "none"])
    split = ["-sm", "row", "-mg", "1", "-ts", "3,1"]
    offload = ["-ngl", "7", "-dev", "CUDA0,CUDA1"]
    assert program_options(config, TARGET, DRAFT, has_gpus=True) == ([*CACHE, *offload, *split], ["-ngld", "all"])
