"""What the documents tell people to type, and where their links lead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.command import ROOT

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

# The first words of what is a command. Anything else in a block of code is output or a picture.
WORDS = ("duo", "make", "python", "pip", "pipx", "uv", "curl", "ssh", "git", "eval", ".")
# What the demo prints begins with the program's name, too.
_IS_COMMAND = re.compile(rf"(?!duo (?: |chose ))({'|'.join(map(re.escape, WORDS))}) |[A-Z_]+=|benchmarks/")


@dataclass(frozen=True, slots=True)
class Command:
    """A line that is to be typed, without its comment; `section` is the text around it, up to the next headings."""

    text: str
    place: str  # such as README.md:41
    section: str


def commands() -> list[Command]:
    """Those of all documents."""
    return [command for document in DOCUMENTS for command in _commands_in(document)]


def _commands_in(document: Path) -> Iterator[Command]:
    lines = document.read_text(encoding="utf-8").splitlines()
    for number in _code_lines(lines):
        if _IS_COMMAND.match(lines[number].strip()):
            text = re.sub(r"\s+(#\s|\s~/).*", "", lines[number].strip())
            text = re.sub(r" \[((?:-|http)[^\]]*)\]", r" \1", text)  # an optional part is typed, too
            yield Command(text, f"{document.relative_to(ROOT)}:{number + 1}", _section(lines, number))


def programs(document: Path) -> list[tuple[str, str]]:
    """The blocks of Python in a document, each with its place."""
    text = document.read_text(encoding="utf-8")
    return [
        (f"{document.name}:{text[: found.start()].count(chr(10)) + 1}", found[1])
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def json_block(document: Path) -> str:
    """The only block of JSON in a document."""
    (found,) = re.findall(r"^```json\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def strangers() -> list[str]:
    """Lines between commands that are none that is known here."""
    found = []
    for document in DOCUMENTS:
        lines = document.read_text(encoding="utf-8").splitlines()
        code = {number for number in _code_lines(lines) if lines[number].strip()}
        known = {number for number in code if _IS_COMMAND.match(lines[number].strip())}
        strange = [number for number in sorted(code - known) if {number - 1, number + 1} & known]
        found += [f"{document.relative_to(ROOT)}:{number + 1}" for number in strange]
    return found


def _code_lines(lines: list[str]) -> Iterator[int]:
    """The numbers of lines that are indented by four or fenced."""
    fenced = False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield number


def _section(lines: list[str], number: int) -> str:
    edges = [-1, *(at for at, line in enumerate(lines) if line.startswith("#")), len(lines)]
    start = max(edge for edge in edges if edge < number)
    return "\n".join(lines[max(start, 0) : min(edge for edge in edges if edge > number)])


def inline_commands() -> list[Command]:
    """`duo …` in running text."""
    return [
        Command(text.replace("\n", " "), str(document.relative_to(ROOT)), "")
        for document in DOCUMENTS
        for text in re.findall(r"(?<!`)`(duo [^`]+)`(?!`)", _prose(document.read_text(encoding="utf-8")))
    ]


def broken_links() -> list[str]:
    """Links to files and headings that are not there."""
    broken = []
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(document.read_text(encoding="utf-8"))):
            name, _, anchor = link.partition("#")
            path = document.parent / name if name else document
            if re.match(r"\w+:", link) or (path.exists() and (not anchor or anchor in _anchors(path))):
                continue
            broken.append(f"{document.relative_to(ROOT)}: {link}")
    return broken


def _prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", _prose(document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
