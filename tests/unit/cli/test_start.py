"""`duo` alone says what to type next, and starts nothing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from duo.cli.app import app
from duo.cli.arguments import ArgumentReader
from tests.command import assert_refused
from tests.golden.configuration import whole_command
from tests.unit.cli.runner import duo


def test_duo_alone_says_what_to_type_next(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = duo(env={"DUO_CACHE": str(cache)})
    assert (run.status, run.stderr, cache.exists()) == (0, "", False)
    assert len(run.text.splitlines()) <= 15
    assert max(map(len, run.text.splitlines())) <= 104
    for words in ("duo demo", "duo chat -m", "duo -m", "duo lead", "duo tune", "duo --help"):
        assert words in run.text


def test_its_commands_are_commands_with_these_options() -> None:
    root = whole_command()
    lines = re.findall(r"^  duo (.+?)   ", duo().text, re.MULTILINE)
    assert len(lines) == 8
    for line in lines:
        name, *rest = shlex.split(line)
        is_run = name.startswith("-")
        command = root if is_run else root.commands[name]
        arguments = [name, *rest] if is_run else rest
        context = typer.Context(command, info_name="duo")
        assert ArgumentReader(command, context).read(arguments) == arguments


@pytest.mark.parametrize("name", ["LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO"])
def test_a_model_from_the_environment_is_run(name: str) -> None:
    assert_refused(duo(env={name: "missing.gguf"}), "no prompt: add -p or -f", status=2)
    assert duo(env={name: ""}).text == duo().text


def test_the_same_from_the_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an error of stdout, which only the whole program explains."""
    monkeypatch.setattr("duo.cli.main._show_quickly", lambda: None)
    assert "duo demo" in duo().text
    assert isinstance(app, typer.Typer)
