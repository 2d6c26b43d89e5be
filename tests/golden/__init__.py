"""Expected help texts: `python -m tests.golden` writes them anew."""

from pathlib import Path

from duo.cli.commands import COMMANDS
from tests.unit.cli.runner import duo

HELP: dict[tuple[str, ...], Path] = {
    ("--help",): Path(__file__).with_name("help.txt"),
    ("--help-all",): Path(__file__).with_name("help-all.txt"),
    **{(name, "--help"): Path(__file__).with_name(f"help-{name}.txt") for name in COMMANDS},
}


def help_text(*arguments: str) -> str:
    """What `duo` prints in a window 100 characters wide, without the blanks at the ends of lines."""
    run = duo(*arguments, env={"COLUMNS": "100"})
    assert (run.status, run.stderr) == (0, ""), run.stderr
    return "\n".join(line.rstrip() for line in run.text.strip().splitlines()) + "\n"
