"""From arguments, environment variables and files to options and prompts, and from options to configs."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from duo.cli.app import app
from duo.cli.commands.lead import addresses
from duo.cli.commands.options import BackOptions, RunOptions
from duo.cli.options import api_keys, read_prompt
from duo.cli.terminal.console import with_options
from duo.config import SAMPLERS, EngineConfig, SamplingConfig, StopConfig
from tests.command import assert_refused
from tests.unit.cli.runner import duo, parse

# Values to try for an option; each takes one of them.
VALUES = ("7", "0.5", "row", "on", "q8_0", "a:1,b:2", "1,2", "x.gguf", "{}", "0")


def test_environment_variables_stand_for_options() -> None:
    command: Any = typer.main.get_command(app)
    options = [option for option in command.params if option.envvar]
    assert len(options) > 30
    for option in options:
        for name in [option.envvar] if isinstance(option.envvar, str) else option.envvar:
            if option.is_flag:
                on = not option.default
                typed, env = [(option.opts if on else option.secondary_opts)[0]], {name: str(int(on))}
            else:
                runs = ((value, duo(option.opts[0], value, "--version")) for value in VALUES)
                value = next(value for value, run in runs if run.status == 0)
                typed, env = [option.opts[0], value], {name: value}
            assert parse("-e", env=env) == parse(*typed) != parse("-e"), name


@pytest.mark.parametrize(
    ("target", "draft"),
    [("-ngl 3", "-ngld 3"), ("-dev none", "-devd none"), ("-t 1", "-td 1"), ("-cmoe", "-cmoed"),
     ("-ncmoe 2", "-ncmoed 2"), ("-ot a=CPU", "-otd a=CPU"), ("--cpu-moe", "--spec-draft-cpu-moe")],
)  # fmt: skip
def test_a_draft_worker_takes_the_options_of_a_model_and_of_a_draft(target: str, draft: str) -> None:
    found: list[BackOptions] = []

    def record(options: BackOptions) -> int:
        found.append(options)
        return 0

    with mock.patch("duo.cli.commands.back.back", record):
        for words in ("", target, draft):
            run = duo("back", *words.split())
            assert (run.status, run.stderr) == (0, "")
    assert found[1] == found[2] != found[0]


def test_a_typed_option_wins_over_the_environment() -> None:
    env = {"LLAMA_ARG_MODEL": "a.gguf", "LLAMA_ARG_N_PREDICT": "7", "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "user/repo"}
    options = parse("-hf", "other/repo", "-md", "b.gguf", "-n", "3", env=env)
    assert (options.model, options.hf_repo, options.generation.stop.n_predict) == (None, "other/repo", 3)
    assert (options.model_draft, options.hf_repo_draft) == (Path("b.gguf"), None)
    assert_refused(duo("-p", "x", env={"LLAMA_ARG_CTX_SIZE": "many"}), "'-c'", status=2)


def test_the_engine_config() -> None:
    assert RunOptions().engine == EngineConfig()
    assert parse("--draft=auto", "--draft-ahead=auto", "--branches=auto", "-ngl=auto").engine == EngineConfig()
    options = (
        "-c 9 -b 8 -ub 7 -fa on -ctk f32 -ctv q8_0 -t 3 -tb 4 -td 2 -Cr 0-1 -Crd 2-3 --draft-max 5 --draft-ahead 6 "
        "--schedule sequential --exact --no-warmup --branches 3 -ngl all -ngld 7 -dev none -ts 3/1 --rpcd a:1,b:2"
    )
    assert parse(*options.split()).engine == EngineConfig(
        n_ctx=9, n_batch=8, n_ubatch=7, flash_attn="on", type_k="f32", type_v="q8_0", exact=True, n_threads=3,
        n_threads_batch=4, draft_n_threads=2, cpu_range="0-1", draft_cpu_range="2-3", draft_n_max=5, draft_n_ahead=6,
        schedule="sync", warmup=False, branches=3, n_gpu_layers="all", draft_n_gpu_layers=7, devices=(),
        tensor_split=(3.0, 1.0), draft_rpc_servers=("a:1", "b:2"),
    )  # fmt: skip


def sampling(*arguments: str) -> SamplingConfig:
    return parse(*arguments).config().sampling


def test_the_sampling_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert replace(sampling("-e"), seed=0) == SamplingConfig()
    options = (
        "--temp 0.9 -s 7 --top-k 5 --top-p 0.8 --min-p 0.1 --typical 0.7 --repeat-penalty 1.2 "
        "--repeat-last-n 9 --presence-penalty 1 --frequency-penalty 2 -l 5-inf -l 6+1.5 --samplers top_k;temp"
    )
    assert sampling(*options.split()) == SamplingConfig(
        temp=0.9, seed=7, top_k=5, top_p=0.8, min_p=0.1, typical=0.7, repeat_penalty=1.2, repeat_last_n=9,
        presence_penalty=1.0, frequency_penalty=2.0, logit_bias=((5, float("-inf")), (6, 1.5)),
        samplers=("top_k", "temperature"),
    )  # fmt: skip
    assert len({sampling("-s", "-1").seed for _ in range(3)}) == 3, "-1 is a new seed each time"
    assert capsys.readouterr().err == ""
    assert sampling("--samplers", "penalties;dry;top-k;typ_p;top_p;min_p;xtc;temp").samplers == SAMPLERS
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split("--samplers: ")[1].split()[0] for line in warnings] == ["dry", "xtc"], "not supported"


def test_the_generation_config(tmp_path: Path) -> None:
    options = parse("--n-predict=5", "-r", r"a\n", "-r", "b", "--ignore-eos", "--verify", "rejection", "--temp", "1")
    config = options.config(escape=True)
    assert (config.stop, config.is_rejection) == (StopConfig(5, ("a\n", "b"), ignore_eos=True), True)
    assert options.config(escape=False).stop.stop_strings == (r"a\n", "b")
    for option, of_file, text, grammar in (
        ("--grammar", "--grammar-file", 'root ::= "a"', 'root ::= "a"'),
        ("-j", "-jf", "{}", 's0: %json {"$ref": "#/$defs/s0", "$defs": {"s0": {"type": "object"'),
    ):  # fmt: skip
        (tmp_path / "file").write_text(f"{text}\n")
        found = parse(option, text).config().grammar
        assert found == parse(of_file, tmp_path / "file").config().grammar
        assert grammar in str(found)


def test_messages_name_options_instead_of_parameters() -> None:
    said = "layers on devices (n_gpu_layers, draft_n_gpu_layers): take a smaller n_ctx, or profile=False"
    assert with_options(said) == "layers on devices (-ngl, -ngld): take a smaller -c, or --no-profile"
    for name in ("/models/n_ctx.gguf", "my-n_ctx", "n_ctx_train", "top_k"):
        assert with_options(name) == name


# Prompts; tests/golden/transcript.txt has others


@pytest.mark.parametrize(("content", "prompt"), [("a b", "a b"), ("a b\n", "a b"), ("a b\n\n", "a b\n"), ("é", "é")])
def test_one_newline_at_the_end_of_a_file_is_dropped(tiny: Path, tmp_path: Path, content: str, prompt: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(content.encode())
    assert read_prompt(None, str(path), escape=True) == prompt
    run = duo("-m", tiny, "-f", "-", "-n", "0", "--display-prompt", stdin=content.encode())
    assert run.text == prompt


def test_escapes(tmp_path: Path) -> None:
    written = r"a\nb\tc\"d\'e\\n \x41\xe2\x82\xac \q \x4 \e" + "\\"
    meant = "a\nb\tc\"d'e\\n A€ \\q \\x4 \\e\\"
    path = tmp_path / "prompt.txt"
    path.write_text(written)
    for source in ((written, None), (None, str(path))):
        assert read_prompt(*source, escape=True) == meant
        assert read_prompt(*source, escape=False) == written
    assert read_prompt("a b\n", None, escape=True) == "a b\n"
    assert read_prompt(None, None, escape=True) is None


@pytest.mark.parametrize("escape", ["--escape", "--no-escape"])
def test_invalid_utf_8(tiny: Path, tmp_path: Path, escape: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"one\\n two \xff")
    said, model = "is not valid UTF-8: byte 0xff at offset", ("-m", "missing.gguf", escape)
    assert_refused(duo(*model, "-f", path), f"{path} {said} 10")
    assert_refused(duo(*model, "-f", "-", stdin=b"\xff"), f"standard input {said} 0")
    assert_refused(duo(*model, "-p", b"two \xff"), f"the prompt {said} 4")
    assert_refused(duo("-m", b"\xff.gguf", "-p", "x"), "no such file")
    assert_refused(duo(*model, "-p", "x", "-r", b"\xff"), f"-r {said} 0")
    assert_refused(duo(*model, "-p", "x", "--grammar", b'root ::= "\xff"'), f"--grammar {said} 10")
    assert_refused(duo("-m", tiny, "-p", "x", "-sys", b"\xff"), f"-sys {said} 0")


# duo lead: its API keys, and the addresses that it shows


def test_api_keys_are_joined_from_options_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("sk-four\n\n  sk-five  \n", encoding="utf-8")
    assert api_keys(["sk-one, sk-two", "sk-three"], file) == ["sk-one", "sk-two", "sk-three", "sk-four", "sk-five"]
    assert api_keys(None, None) == []


def test_the_address_for_clients() -> None:
    assert addresses("http://10.0.0.1:1", "box") == ("http://10.0.0.1:1", "")
    for every, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
        expected = f"http://{here}:8123", " (other machines: http://box:8123/v1)"
        assert addresses(f"http://{every}:8123", "box") == expected
