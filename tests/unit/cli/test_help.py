"""Help texts, as in the golden files (`make docs` writes them), `duo` alone, completion, and docs/configuration.md."""

import re
import shlex
from pathlib import Path
from unittest import mock

import pytest
import typer

from duo.cli.arguments import ArgumentReader
from tests.command import ROOT, assert_refused
from tests.golden import HELP, help_text
from tests.golden.configuration import CONFIGURATION, SETTINGS, settings, whole_command, with_options
from tests.unit.cli.runner import duo

# Names of environment variables in the code; the internal one passes a secret to a process that duo starts.
VARIABLE = re.compile(r'["$ ](_?(?:DUO|XDG)_[A-Z_]+|NO_COLOR|G?OMP_[A-Z_]+|CUDA_VISIBLE_DEVICES)\b')
INTERNAL = {"DUO_DRAFT_TOKEN"}


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_the_help_text_is_current(arguments: tuple[str, ...]) -> None:
    assert HELP[arguments].read_text(encoding="utf-8") == help_text(*arguments)


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


def test_duo_alone_says_what_to_type_next(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = duo(env={"DUO_CACHE": str(cache)})
    assert (run.status, run.stderr, cache.exists()) == (0, "", False)
    root = whole_command()
    lines = re.findall(r"^  duo (.+?)   ", run.text, re.MULTILINE)
    assert len(lines) == 8
    for line in lines:  # they are commands with these options
        name, *rest = shlex.split(line)
        command, arguments = (root, [name, *rest]) if name.startswith("-") else (root.commands[name], rest)
        assert ArgumentReader(command, typer.Context(command, info_name="duo")).read(arguments) == arguments
    with mock.patch("duo.cli.main.show", side_effect=OSError):  # which only the whole program explains
        assert duo().text == run.text


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


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
@pytest.mark.parametrize("columns", [80, 60])
def test_the_help_of_a_narrow_terminal_has_whole_names_and_whole_texts(
    arguments: tuple[str, ...], columns: int
) -> None:
    wide, narrow = (duo(*arguments, env={"COLUMNS": str(n)}).text for n in (300, columns))
    assert max(map(len, narrow.splitlines())) <= columns
    assert not re.search(r"-[\w-]*…", narrow)
    names = re.compile(r"(?<![\w-])--?[a-z][\w-]+")
    assert set(names.findall(wide)) - set(names.findall(narrow)) == set()
