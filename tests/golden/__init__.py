"""Expected help texts, and what short commands print: `python -m tests.golden` writes them anew."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from duo.cli.commands import COMMANDS
from tests.unit.cli.runner import duo

HELP: dict[tuple[str, ...], Path] = {
    ("--help",): Path(__file__).with_name("help.txt"),
    ("--help-all",): Path(__file__).with_name("help-all.txt"),
    **{(name, "--help"): Path(__file__).with_name(f"help-{name}.txt") for name in COMMANDS},
}
# Commands that need no files, each with what it prints, and its exit status if that is not 0; … stands for anything.
TRANSCRIPT = Path(__file__).with_name("transcript.txt")
_COMMAND = re.compile(r"^\$ duo (.*)\n((?:(?![$#] ).+\n)*)", re.MULTILINE)


def help_text(*arguments: str) -> str:
    """What `duo` prints in a window 100 characters wide, without the blanks at the ends of lines."""
    run = duo(*arguments, env={"COLUMNS": "100"})
    assert (run.status, run.stderr) == (0, ""), run.stderr
    return "\n".join(line.rstrip() for line in run.text.strip().splitlines()) + "\n"


def recorded() -> dict[str, str]:
    """The arguments of each command of the transcript, with what is expected of it."""
    return dict(_COMMAND.findall(TRANSCRIPT.read_text(encoding="utf-8")))


def printed(arguments: str, expected: str) -> str:
    """What a command prints now, and its exit status; `expected` itself if it stands for that."""
    run = duo(*shlex.split(arguments))
    assert not (run.status and run.stdout), run.text
    text = run.stderr + run.text + f"[{run.status}]\n" * bool(run.status)
    return expected if re.fullmatch(re.escape(expected).replace("…", ".*"), text) else text


def transcript() -> str:
    """The transcript, with what the commands print now."""
    return _COMMAND.sub(lambda match: f"$ duo {match[1]}\n{printed(match[1], match[2])}", TRANSCRIPT.read_text("utf-8"))
