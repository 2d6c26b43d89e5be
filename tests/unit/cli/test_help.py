"""Help texts, as in the golden files (`make docs` writes them), completion, and docs/configuration.md."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Any

import pytest
import typer

from duo.cli.app import app
from tests.command import ROOT
from tests.golden import HELP, help_text
from tests.golden.configuration import CONFIGURATION, START, whole_command, with_options
from tests.unit.cli.runner import duo

# Names of environment variables in the code; the internal one passes a secret to a process that duo starts.
VARIABLE = re.compile(r'"(_?(?:DUO|XDG)_[A-Z_]+|NO_COLOR|G?OMP_[A-Z_]+|CUDA_VISIBLE_DEVICES)"')
INTERNAL = {"DUO_DRAFT_TOKEN"}


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_the_help_text_is_current(arguments: tuple[str, ...]) -> None:
    assert HELP[arguments].read_text(encoding="utf-8") == help_text(*arguments)


def test_help_shows_the_main_options_and_help_all_shows_every_option() -> None:
    main, every = help_text("--help"), help_text("--help-all")
    panels = re.findall(r"╭─ ([\w ]+) ─", main)
    assert panels == ["Main options", "Commands"]
    for names in ("-m ", "-md ", "-hf,", "-p ", "-f ", "-n ", "--chat", "--temp,", "--draft,", "-ngl ", "--help-all"):
        assert names in main
    assert "--samplers" not in main
    command: Any = typer.main.get_command(app)
    long_names = [[name for name in option.opts if name.startswith("--")] for option in command.params]
    assert [names for names in long_names if not any(name in every for name in names)] == []


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        ("-h", "duo [OPTIONS]"),
        ("-m missing.gguf -p x --help", "duo [OPTIONS]"),
        ("--version --help-all", "duo [OPTIONS]"),
        ("plan --accept 7 -h", "duo plan [OPTIONS]"),
        ("tune -m missing.gguf --help", "duo tune [OPTIONS]"),
    ],
)
def test_help_comes_before_everything_else(arguments: str, usage: str) -> None:
    run = duo(*arguments.split())
    assert (run.status, run.stderr) == (0, "")
    assert f"Usage: {usage}" in run.text


def test_version_and_devices() -> None:
    versions, devices = duo("--version"), duo("--list-devices")
    assert (versions.status, versions.stderr, devices.status, devices.stderr) == (0, "", 0, "")
    names = [line.rpartition(" ")[0] for line in versions.text.splitlines()]
    assert names == ["duo", "llama-cpp-python", "llama.cpp", "numpy"]
    assert any(line.startswith("CPU: ") for line in devices.text.splitlines())


def test_licence_and_third_party_notices() -> None:
    run = duo("--version", "-v")
    lines = run.text.splitlines()
    assert (run.status, run.stderr) == (0, "")
    assert lines[: lines.index("MIT License")] == [*duo("--version").text.splitlines(), ""]
    notices = lines[lines.index("Direct dependencies, each under its own licence:") + 1 :]
    assert all(re.fullmatch(r"\S.* [\d.]+: \S.*", line) for line in notices[:-1])
    assert {"typer", "numpy", "llama_cpp_python"} <= {line.split()[0] for line in notices}
    assert "ggml" in notices[-1]


def test_the_installed_command_runs_main() -> None:
    (command,) = entry_points(group="console_scripts", name="duo")
    assert command.value == "duo.cli.main:main"


# Shell completion


@pytest.mark.parametrize(
    ("shell", "line", "answer"),
    [
        ("zsh", "duo --schedule a", '_arguments \'*: :(("auto"\n"async"))\'\n'),
        ("zsh", "duo -m ma", "_files\n"),
        ("fish", "duo --schedule a", "auto\nasync\n"),
        ("fish", "duo doc", "doctor\tDescribe this installation, its problems,...\n"),
    ],
)
def test_zsh_and_fish(shell: str, line: str, answer: str) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    run = duo(env={"_DUO_COMPLETE": f"complete_{shell}"} | asked)
    assert (run.status, run.text, run.stderr) == (0, answer, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_duo(shell: str) -> None:
    run = duo(env={"_DUO_COMPLETE": f"source_{shell}"})
    assert (run.status, run.stderr) == (0, "")
    assert f"_DUO_COMPLETE=complete_{shell}" in run.text


# docs/configuration.md


def test_the_lists_of_options_are_current() -> None:
    document = CONFIGURATION.read_text(encoding="utf-8")
    assert document == with_options(document)


def test_the_lists_have_every_option_of_every_command() -> None:
    root = whole_command()
    lists = CONFIGURATION.read_text(encoding="utf-8").partition(START)[2]
    for name, command in [("duo", root), *((f"duo {name}", one) for name, one in root.commands.items())]:
        section = lists.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        missing = [option.opts for option in command.params if f"`{option.opts[0]}`" not in section]
        assert [names for names in missing if names[0].startswith("-")] == [], name


def test_the_document_has_every_environment_variable_that_the_code_reads() -> None:
    document = CONFIGURATION.read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "duo").rglob("*.py")]
    read = {name for source in sources for name in VARIABLE.findall(source)}
    assert {"DUO_CONFIG", "DUO_CACHE", "NO_COLOR"} <= read
    assert [name for name in sorted(read - INTERNAL) if f"`{name}`" not in document] == []
