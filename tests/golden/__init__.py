"""Expected texts, made from the real command: `python -m tests.golden` writes them anew."""

from __future__ import annotations

from pathlib import Path

from tests.command import duo

HELP = {
    (): Path(__file__).with_name("help.txt"),
    ("plan",): Path(__file__).with_name("help-plan.txt"),
    ("tune",): Path(__file__).with_name("help-tune.txt"),
    ("check",): Path(__file__).with_name("help-check.txt"),
    ("trace",): Path(__file__).with_name("help-trace.txt"),
    ("lead",): Path(__file__).with_name("help-lead.txt"),
    ("back",): Path(__file__).with_name("help-back.txt"),
    ("bench",): Path(__file__).with_name("help-bench.txt"),
    ("chat",): Path(__file__).with_name("help-chat.txt"),
    ("doctor",): Path(__file__).with_name("help-doctor.txt"),
    ("rpc-server",): Path(__file__).with_name("help-rpc-server.txt"),
}


def help_text(*command: str) -> str:
    """What `duo [command] --help` says in a window 100 characters wide, without the blanks at the ends of lines."""
    run = duo(*command, "--help", env={"COLUMNS": "100"})
    assert (run.status, run.stderr) == (0, ""), run.stderr
    return "\n".join(line.rstrip() for line in run.text.strip().splitlines()) + "\n"
