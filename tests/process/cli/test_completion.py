"""Completions, as the shells ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import duo, environment

# What bash does when somebody presses Tab in the last of these words.
BASH = """
eval "$(_DUO_COMPLETE=source_bash duo)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_duo_completion duo
printf '%s\\n' "${COMPREPLY[@]}"
"""


def in_bash(*words: str) -> list[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *words],
        env=environment({"PATH": path}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_choices() -> None:
    assert {"bench", "lead", "back", "chat"} <= set(in_bash("duo", ""))
    assert in_bash("duo", "be") == ["bench"]
    assert in_bash("duo", "-ng") == ["-ngl", "-ngld"]
    assert in_bash("duo", "bench", "--mo") == ["--model", "--model-draft", "--modes"]
    assert in_bash("duo", "-m", r"some\ model.gguf", "--schedule", "a") == ["auto", "async"]
    assert in_bash("duo", "tune", "-sm", "") == ["none", "layer", "row", "tensor"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_where_a_file_is_wanted_bash_is_left_to_name_files() -> None:
    assert in_bash("duo", "-m", "ma") == []


@pytest.mark.parametrize(
    ("shell", "line", "answer"),
    [
        ("zsh", "duo --schedule a", '_arguments \'*: :(("auto"\n"async"))\'\n'),
        ("zsh", "duo -m ma", "_files\n"),
        ("fish", "duo --schedule a", "auto\nasync\n"),
        ("fish", "duo doc", "doctor\tSay what this installation can do, what is...\n"),
    ],
)
def test_what_zsh_and_fish_are_answered(shell: str, line: str, answer: str) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    run = duo(env={"_DUO_COMPLETE": f"complete_{shell}"} | asked)
    assert (run.status, run.text, run.stderr) == (0, answer, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_duo(shell: str) -> None:
    run = duo(env={"_DUO_COMPLETE": f"source_{shell}"})
    assert (run.status, run.stderr) == (0, "")
    assert f"_DUO_COMPLETE=complete_{shell}" in run.text


def test_completion_does_not_wait_for_llama_cpp() -> None:
    check = "import atexit, sys; atexit.register(lambda: print('llama_cpp' in sys.modules, file=sys.stderr))"
    run = duo(env={"_DUO_COMPLETE": "complete_bash", "COMP_WORDS": "duo -ng", "COMP_CWORD": "1"}, before=check)
    assert (run.text.split(), run.stderr) == (["-ngl", "-ngld"], "False\n")
