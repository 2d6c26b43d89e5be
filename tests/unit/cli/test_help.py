"""What the help has of every option, in any width; `duo` alone, completion, and docs/configuration.md."""

import re
import shlex
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import typer

from duo.cli.app import EPILOG
from duo.cli.arguments import ArgumentReader
from duo.cli.commands import COMMANDS
from duo.cli.commands.options import RunOptions
from duo.config.option import declared
from duo.models.demo import DRAFT, TARGET
from tests.command import ROOT, assert_refused
from tests.gguf_files import tiny_eagle3, tiny_llama
from tests.golden.configuration import CONFIGURATION, SETTINGS, settings, whole_command, with_options
from tests.unit.cli.runner import duo

# Names of environment variables in the code; the internal one passes a secret to a process that duo starts.
VARIABLE = re.compile(r'["$ ](_?(?:DUO|XDG)_[A-Z_]+|NO_COLOR|G?OMP_[A-Z_]+|CUDA_VISIBLE_DEVICES)\b')
INTERNAL = {"DUO_DRAFT_TOKEN"}


COMMAND_HELP = ["--help-all", *(f"{name} --help" for name in COMMANDS)]
NAME = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def shown(arguments: str, columns: int) -> str:
    """The help in one line, without what draws tables, and brackets as they are shown."""
    run = duo(*arguments.split(), env={"COLUMNS": str(columns)})
    assert (run.status, run.stderr) == (0, "")
    assert max(map(len, run.text.splitlines())) <= columns
    return " ".join(run.text.replace("│", " ").replace("\\[", "[").split())


@pytest.mark.parametrize("arguments", COMMAND_HELP)
@pytest.mark.parametrize("columns", [60, 80, 2000])
def test_every_option_is_in_the_help_of_its_command(arguments: str, columns: int) -> None:
    """With all its names and its description. A table, as in 100 columns or more, is Typer's."""
    text = shown(arguments, columns)
    assert shown(arguments, 100)
    name = arguments.partition(" ")[0]
    for one in declared(COMMANDS[name].options, name) if name in COMMANDS else declared(RunOptions(), "duo"):
        assert one.option.help
        if not one.option.hidden:
            assert set(NAME.findall(" ".join(one.option.flags))) <= set(NAME.findall(text))
            assert one.option.help.replace("\\[", "[") in text


def test_the_short_help_has_the_main_options_and_all_commands_in_40_lines() -> None:
    run = duo("--help", env={"COLUMNS": "80"})
    assert (run.status, run.stderr, len(run.text.splitlines())) == (0, "", 40)
    options = [one.option for one in declared(RunOptions(), "duo") if not one.option.hidden]
    for columns in (80, 120, 60):  # as much of each as there is room for, in whole clauses
        text = shown("--help", columns)
        named = [option for option in options if f" {option.flag} " in text]
        assert 10 < len(named) < len(options) / 2
        for said in [one.help for one in named] + [one.help for one in COMMANDS.values()]:
            clause = re.split(r"[.;,](?: |$)", said)[0]
            assert re.search(rf" {re.escape(clause)}[;, ]", text)
        assert all(f" {name} " in text for name in COMMANDS)
        assert EPILOG in text
    wide = shown("--help", 120)
    assert " -f FILE File with the prompt; -: stdin " in wide
    assert " bench Benchmark duo and llama.cpp's programs on this machine, with these models " in wide
    assert " -v Print more on stderr: all statistics, and llama.cpp's log " in wide


@pytest.mark.parametrize("arguments", ["-m missing.gguf -p x -h", "--version --help-all", "plan --accept 7 -h"])
def test_help_comes_before_everything_else(arguments: str) -> None:
    run = duo(*arguments.split())
    assert (run.status, run.stderr) == (0, "")
    assert re.search(r"Usage: duo (plan )?\[OPTIONS", run.text)


def test_version_devices_notices_and_help_as_a_word() -> None:
    versions, devices, run = duo("--version"), duo("--list-devices"), duo("--version", "-v")
    assert versions.stderr == devices.stderr == run.stderr == ""
    assert duo("version").text == versions.text
    assert duo("help", "lead").text == duo("lead", "--help").text
    names = [line.rpartition(" ")[0] for line in versions.text.splitlines()]
    assert names == ["duo", "llama-cpp-python", "llama.cpp", "numpy"]
    assert any(line.startswith("CPU: ") for line in devices.text.splitlines())
    assert run.text.startswith(f"{versions.text}\nMIT License")
    *notices, last = run.text.partition("Direct dependencies, each under its own licence:\n")[2].splitlines()
    named = {re.sub(r"(\S+) [\d.]+: \S.*", r"\1", line) for line in notices}
    assert {"typer", "numpy", "llama_cpp_python"} <= named
    assert "ggml" in last


# `duo` alone


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without models, which is the current one."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("duo.cli.commands.list_models._MOMENT_S", 1000.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def alone(home: Path) -> list[str]:
    """The commands that `duo` alone names, in its six lines; each can be typed."""
    run = duo(env={"HOME": str(home), "DUO_CACHE": str(home / "cache")})
    assert (run.status, run.stderr, len(run.text.splitlines())) == (0, "", 6)
    lines = re.findall(r"^  [a-z ]+  duo (.+?)(?:    |$)", run.text, re.MULTILINE)
    root = whole_command()
    for line in lines:
        name, *rest = shlex.split(line)
        command, arguments = (root, [name, *rest]) if name.startswith("-") else (root.commands[name], rest)
        assert ArgumentReader(command, typer.Context(command, info_name="duo")).read(arguments) == arguments
    return lines


def test_duo_alone_says_what_to_type_next(home: Path) -> None:
    demo, chat, one, lead = alone(home)
    assert not (home / "cache").exists()
    question = ' --chat -p "Why is the sky blue?"'
    hub = "-hf USER/REPO:QUANT"
    assert (demo, chat, one, lead) == ("demo", f"chat {hub}", f"{hub}{question}", f"lead {hub}")
    tiny_llama(home / "own.gguf", padding=10)
    assert alone(home)[1] == "chat -m own.gguf"
    (home / "cache").mkdir()
    tiny_llama(home / "cache" / "it's large.gguf", n_layer=8)
    tiny_llama(home / "cache" / "small.gguf")
    tiny_llama(home / "cache" / "other.gguf", words=("a", "b"), n_layer=12)
    pair = """-m ~/'cache/it'"'"'s large.gguf' -md ~/cache/small.gguf"""
    _, chat, one, lead = alone(home)
    assert (chat, one, lead) == (f"chat {pair}", f"{pair}{question}", f"lead {pair}")


def test_duo_alone_never_fails(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "damaged.gguf").write_bytes(b"GGUF and no more")
    assert alone(home)[1] == "chat -hf USER/REPO:QUANT"
    with mock.patch("duo.cli.main.show", side_effect=OSError):  # which only the whole program explains
        assert duo().status == 0
    tiny_llama(home / TARGET.name)
    assert alone(home)[1] == "chat -m demo"
    tiny_llama(home / "own.gguf")
    monkeypatch.setattr("duo.cli.commands.list_models._MOMENT_S", 0.0)  # too many files to read
    assert alone(home)[1] == "chat -m demo"
    monkeypatch.setattr("duo.cli.commands.list_models.find_models", mock.Mock(side_effect=PermissionError))
    assert alone(home)[1] == "chat -m FILE"


def test_duo_alone_names_a_model_that_can_chat_and_no_head(home: Path) -> None:
    tiny_llama(home / "chat.gguf", chat_template="{{ messages[0].content }}", n_layer=8)
    tiny_llama(home / "base.gguf", n_layer=12)
    tiny_eagle3(home / "head.gguf")
    assert alone(home)[1] == "chat -m chat.gguf"


def test_without_huggingface_hub_no_command_needs_it(home: Path) -> None:
    with mock.patch.dict("sys.modules", {"huggingface_hub": None}):
        assert alone(home)[1] == "chat -m FILE"
        folder = home / "hub" / "models--ada--tiny-GGUF" / "snapshots" / "1"
        folder.mkdir(parents=True)
        tiny_llama(folder / "tiny-Q4_K_M.gguf")
        assert alone(home)[1] == "chat -m ~/hub/models--ada--tiny-GGUF/snapshots/1/tiny-Q4_K_M.gguf"
    assert alone(home)[1] == "chat -hf ada/tiny-GGUF:Q4_K_M"


def test_the_largest_and_the_smallest_models_are_read_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "cache" / "demo").mkdir(parents=True)
    for name in (TARGET.name, DRAFT.name):
        tiny_llama(home / "cache" / "demo" / name)
    (home / "cache" / "own").mkdir()
    for name, n_layer in (("0.5B", 2), ("1.5B", 6), ("7B", 12), ("32B", 24)):
        tiny_llama(home / "cache" / "own" / f"{name}.gguf", n_layer=n_layer)
    now = count()
    monkeypatch.setattr("duo.cli.commands.list_models.time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr("duo.cli.commands.list_models._MOMENT_S", 2.5)  # two files
    assert alone(home)[1] == "chat -m ~/cache/own/32B.gguf -md ~/cache/own/0.5B.gguf"


@pytest.mark.parametrize("name", ["LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO"])
def test_a_model_from_the_environment_is_run(name: str) -> None:
    assert_refused(duo(env={name: "missing.gguf"}), "no prompt: add -p or -f", status=2)
    assert duo(env={name: ""}).text == duo().text


@pytest.mark.parametrize(
    ("shell", "line", "answer"),
    [
        ("zsh", "duo --schedule a", '_arguments \'*: :(("auto"\n"async"))\'\n'),
        ("fish", "duo --schedule a", "auto\nasync\n"),
        ("fish", "duo doc", "doctor\tDescribe this installation, its problems,...\n"),
    ],
)
def test_completion(shell: str, line: str, answer: str) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    run = duo(env={"_DUO_COMPLETE": f"complete_{shell}"} | asked)
    assert (run.status, run.text, run.stderr) == (0, answer, "")
    script = duo(env={"_DUO_COMPLETE": f"source_{shell}"})
    assert f"_DUO_COMPLETE=complete_{shell}" in script.text


# docs/configuration.md


def test_the_document_has_every_option_and_every_environment_variable() -> None:
    document = CONFIGURATION.read_text(encoding="utf-8")
    assert document == with_options(document)
    assert SETTINGS.read_text(encoding="utf-8") == settings()
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "duo").rglob("*.py")]
    read = {name for source in sources for name in VARIABLE.findall(source)}
    assert {"DUO_CONFIG", "DUO_CACHE", "NO_COLOR"} <= read
    assert [name for name in sorted(read - INTERNAL) if f"`{name}`" not in document] == []
