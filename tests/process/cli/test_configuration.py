"""docs/configuration.md (`make docs` writes its tables anew)."""

from __future__ import annotations

import re
from typing import Any

import typer

from duo.cli.main import app
from tests.command import ROOT
from tests.golden.configuration import CONFIGURATION, START, with_options

# Where code names a variable that it reads.
READS = re.compile(
    r'environ(?:\.get\(|\[)"(\w+)"|named_folder\("(\w+)", "(\w+)"\)|os\.getenv\("(\w+)"|^COMPLETE = "(\w+)"', re.M
)


def document() -> str:
    return CONFIGURATION.read_text(encoding="utf-8")


def test_it_is_current() -> None:
    assert document() == with_options(document())


def test_every_option_of_every_command_is_there() -> None:
    root: Any = typer.main.get_command(app)
    tables = document().partition(START)[2]
    for name, command in [("duo", root), *((f"duo {name}", one) for name, one in root.commands.items())]:
        section = tables.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        missing = [option.opts for option in command.params if f"`{option.opts[0]}`" not in section]
        assert [names for names in missing if names[0].startswith("-")] == [], name


def test_every_variable_that_the_code_reads_is_there() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "duo").rglob("*.py")]
    read = {name for source in sources for found in READS.findall(source) for name in found if name}
    assert {"DUO_CONFIG", "DUO_CACHE", "NO_COLOR"} <= read
    assert [name for name in sorted(read - {"LOCALAPPDATA"}) if f"`{name}`" not in document()] == []


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `-ngl`")]
    assert len(rows) == 1 + 1  # of duo and of duo back
    assert all("`N\\|all\\|auto`" in row and len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
