"""The help text, as in the golden files (`make docs` writes them anew)."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from tests.command import duo
from tests.golden import HELP, help_text


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_the_help_text_is_current(command: tuple[str, ...]) -> None:
    assert HELP[command].read_text(encoding="utf-8") == help_text(*command)


def test_the_six_that_matter_come_first() -> None:
    first = help_text().split("╭─")[1]
    assert "The six that matter first" in first
    for option in ("--model ", "--model-draft", "--prompt ", "--file ", "--predict", "--draft"):
        assert option in first
    assert first.count("│ --") == 6


def test_help_wins_over_everything_else() -> None:
    for arguments, usage in (
        ("-h", "duo [OPTIONS]"),
        ("--help", "duo [OPTIONS]"),
        ("-m missing.gguf -p x --help", "duo [OPTIONS]"),
        ("--version --help", "duo [OPTIONS]"),
        ("plan --accept 7 -h", "duo plan [OPTIONS]"),
        ("tune -m missing.gguf --help", "duo tune [OPTIONS]"),
    ):
        run = duo(*arguments.split())
        assert (run.status, run.stderr) == (0, "")
        assert f"Usage: {usage}" in run.text


@pytest.mark.parametrize("arguments", ["--help", "plan --help", "-n x", "tune --x"])
def test_help_and_mistakes_do_not_wait_for_llama_cpp(arguments: str) -> None:
    check = "import atexit, sys; atexit.register(lambda: print('llama_cpp' in sys.modules, file=sys.stderr))"
    assert duo(*arguments.split(), before=check).stderr.splitlines()[-1] == "False"


def test_the_installed_command_is_this_one() -> None:
    (command,) = entry_points(group="console_scripts", name="duo")
    assert command.value == "duo.cli.main:main"
