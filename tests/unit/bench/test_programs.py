"""llama.cpp's programs: how they are called, and what is read from recorded output."""

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from duo.bench import contestants
from duo.bench.contestants import SPECULATIVE, Program, checked, other_programs
from duo.bench.rounds import Job, ParseError, Run
from duo.config import EngineConfig
from duo.loading import load
from tests.gguf_files import tiny_llama
from tests.unit.bench.recorded import JOB, N_TOKENS, PROMPT, TEXT, ended, recorded

COMPLETION, CLI = "llama-completion", "llama-cli"


def parse(name: str, found: subprocess.CompletedProcess[str], job: Job = JOB) -> Run:
    return checked(name, job.n_tokens, lambda: found, partial(Program(name, Path(name), 1).parse, job))


def test_recorded_output_is_parsed() -> None:
    run = parse(COMPLETION, ended(recorded("completion.out"), recorded("completion.err")))
    figures = {"prompt_tokens_per_s": 256.51, "target_ms_per_decode": 12.73, "first_token_s": 0.02729}
    assert run == Run(TEXT, N_TOKENS, 78.54, figures)
    assert parse(CLI, ended(recorded("cli.out"))) == Run(TEXT, None, 72.9, {"prompt_tokens_per_s": 235.1}), "no count"
    more = TEXT + " they could make a"  # it may write a few tokens more
    run = parse(SPECULATIVE, ended(recorded("speculative.out"), recorded("speculative.err")))
    first_s = 0.039 + 1 / 42.466
    figures = {"prompt_tokens_per_s": 179.879, "verified": 32, "accepted": 17, "first_token_s": first_s}
    assert run == Run(more, 28, 42.466, figures)
    run = parse(SPECULATIVE, ended(recorded("speculative.out"), recorded("speculative-none.err")))
    assert (run.figures["verified"], run.figures["accepted"]) == (0, 0)


def test_llama_cli_truncates_the_echo_of_a_long_prompt() -> None:
    for prompt in ("word " * 130, "x" * 499 + "é and more"):
        shown = prompt.encode()[:500].decode("utf-8", "replace") + " ... (truncated)"
        output = ended(recorded("cli.out").replace(PROMPT, shown))
        assert parse(CLI, output, replace(JOB, prompt=prompt)).text == TEXT


@pytest.mark.parametrize("name", [COMPLETION, CLI, SPECULATIVE])
def test_a_failure_an_unknown_format_and_a_short_text_are_errors(name: str) -> None:
    with pytest.raises(ParseError, match=f"{name} exited with 3: no such file"):
        parse(name, ended("", "no such file\n\n", 3))
    with pytest.raises(ParseError, match=f"{name} exited with 1: no message"):
        parse(name, ended("text", status=1))
    with pytest.raises(ParseError, match=f"{name}: cannot read its output: no figures in: …'helphelp'"):
        parse(name, ended("help", "help"))
    with pytest.raises(ParseError, match=f"{name} stopped after 24 of 25 tokens"):
        checked(name, 25, ended, lambda _: Run("", 24, 1.0))


@pytest.mark.parametrize("name", [COMPLETION, CLI, SPECULATIVE])
def test_command_lines(name: str) -> None:
    command = Program(name, Path("a"), 2, ["-fa", "on", "-md", "{draft}"]).command(JOB)
    assert command[:10] == ["a", "-m", "target.gguf", "-f", "prompt.txt", "-n", "24", "-c", "256", "--temp"]
    assert {"--no-escape", "-fa", "--ignore-eos"} < set(command)
    assert ("-no-cnv" in command) == (name == COMPLETION)
    wanted = {"--temp": "0", "-t": "2", "-md": "draft.gguf"}
    assert {option: command[command.index(option) + 1] for option in wanted} == wanted


def test_the_program_that_can_draft_does_so_with_every_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duo.llama.context_params.flash_is_fast", lambda _: False)
    model = tiny_llama(tmp_path / "tiny.gguf")
    paths = {name: Path(name) for name in (COMPLETION, SPECULATIVE)}
    with load(model, model, n_ctx=128, n_threads=1, draft_n_threads=1, profile=False) as engine:
        found = other_programs(paths, [2, None, 3], engine)
    drafting = [(f"{SPECULATIVE} k={k}", "1/1", "CPU+CPU") for k in (2, 3)]
    assert [(c.name, c.threads, c.devices) for c in found] == [(COMPLETION, "1", "CPU"), *drafting]
    commands = [" ".join(c.write.command(JOB)) for c in found]  # type: ignore[attr-defined]
    assert all("-fa off -ctk f16 -ctv f16 -dev none" in command for command in commands)
    options = "-devd none -md draft.gguf --spec-type draft-simple -td 1 --spec-draft-n-max"
    assert [f"{options} {k} --spec-draft-p-min 0" in command for k, command in enumerate(commands, 1)] == [
        False, True, True
    ]  # fmt: skip


def test_programs_place_experts_as_duo_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "gpus", lambda: ["a card"])
    config = EngineConfig(override_tensor=["up=CPU,down=CUDA0", "gate=CPU"], n_cpu_moe=2, draft_cpu_moe=True)
    target, draft = config.target_model(Path("a"), has_draft=True), config.draft_model(Path("b"))
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    placed = contestants._placement(target, "-ngl", "-dev")
    assert placed[2:4] == ["-ot", rf"up=CPU,down=CUDA0,gate=CPU,blk\.(0|1){experts}"]
    assert contestants._placement(draft, "-ngld", "-devd") == ["-ngld", "all", "-otd", experts]
