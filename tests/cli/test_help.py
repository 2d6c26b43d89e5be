"""The help text, in the golden file and in the README (`make docs` writes both anew)."""

from __future__ import annotations

from importlib.metadata import entry_points

from tests.command import duo
from tests.golden import HELP, README, help_text, with_help


def test_the_help_text_is_current() -> None:
    assert HELP.read_text(encoding="utf-8") == help_text()


def test_the_readme_has_it() -> None:
    readme = README.read_text(encoding="utf-8")
    assert "<!-- help:start -->" in readme
    assert readme == with_help(readme, HELP.read_text(encoding="utf-8"))


def test_a_readme_without_markers_gets_them_once() -> None:
    readme = with_help("# duo\n", "usage\n")
    assert readme == "# duo\n\n## All options\n\n<!-- help:start -->\n```text\nusage\n```\n<!-- help:end -->\n"
    assert with_help(readme, "usage\n") == readme
    assert with_help(readme + "\nmore\n", "new\n") == readme.replace("usage", "new") + "\nmore\n"


def test_the_six_that_matter_come_first() -> None:
    first = help_text().split("╭─")[1]
    assert "The six that matter first" in first
    for option in ("--model ", "--model-draft", "--prompt ", "--file ", "--predict", "--draft"):
        assert option in first
    assert first.count("│ --") == 6


def test_help_wins_over_everything_else() -> None:
    for arguments in ("-h", "--help", "-m missing.gguf -p x --help", "--version --help"):
        run = duo(*arguments.split())
        assert (run.status, run.stderr) == (0, "")
        assert "Usage: duo [OPTIONS]" in run.text


def test_help_does_not_wait_for_llama_cpp() -> None:
    check = "import atexit, sys; atexit.register(lambda: print('llama_cpp' in sys.modules, file=sys.stderr))"
    assert duo("--help", before=check).stderr == "False\n"
    assert duo("-n", "x", before=check).stderr.endswith("\nFalse\n")


def test_the_installed_command_is_this_one() -> None:
    (command,) = entry_points(group="console_scripts", name="duo")
    assert command.value == "duo.cli.main:main"
