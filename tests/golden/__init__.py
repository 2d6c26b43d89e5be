"""Expected texts, made from the real command: `python -m tests.golden` writes them anew."""

from __future__ import annotations

from pathlib import Path

from tests.command import ROOT, duo

HELP = {
    (): Path(__file__).with_name("help.txt"),
    ("plan",): Path(__file__).with_name("help-plan.txt"),
    ("tune",): Path(__file__).with_name("help-tune.txt"),
    ("check",): Path(__file__).with_name("help-check.txt"),
    ("lead",): Path(__file__).with_name("help-lead.txt"),
    ("back",): Path(__file__).with_name("help-back.txt"),
    ("chat",): Path(__file__).with_name("help-chat.txt"),
}
README = ROOT / "README.md"

_START, _END = "<!-- help:start -->", "<!-- help:end -->"
_SECTION = f"\n## All options\n\n{_START}\n{_END}\n"


def help_text(*command: str) -> str:
    """What `duo [command] --help` says in a window 100 characters wide, without the blanks at the ends of lines."""
    run = duo(*command, "--help", env={"COLUMNS": "100"})
    assert (run.status, run.stderr) == (0, ""), run.stderr
    return "\n".join(line.rstrip() for line in run.text.strip().splitlines()) + "\n"


def with_help(readme: str, text: str) -> str:
    """The README with `text` between its markers, in a section of its own if there are none yet."""
    if _START not in readme:
        readme = readme.rstrip("\n") + "\n" + _SECTION
    before, _, rest = readme.partition(_START)
    _, end, after = rest.partition(_END)
    return f"{before}{_START}\n```text\n{text}```\n{end}{after}"
