"""What the documents tell people to type, and where their links lead."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.command import ROOT
from tests.unit.cli.runner import duo

_DOCS = ROOT / "docs"
README, PYTHON, LEAD, RECIPES = ROOT / "README.md", _DOCS / "python.md", _DOCS / "lead.md", _DOCS / "recipes.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted(_DOCS.glob("*.md"))]

# The first words of what is a command. Anything else in a block of code is output or a picture.
WORDS = ("duo", "make", "python", "pip", "pipx", "uv", "curl", "ssh", "git", "eval", ".")
# What the demo prints begins with the program's name, too.
_IS_COMMAND = re.compile(rf"(?!duo (?: |chose ))({'|'.join(map(re.escape, WORDS))}) |[A-Z_]+=|benchmarks/")


@dataclass(frozen=True, slots=True)
class Command:
    """A line that is to be typed, without its comment; `section` is the text around it, up to the next headings."""

    text: str
    place: str  # such as README.md:41
    section: str = ""


def commands() -> list[Command]:
    """Those of all documents."""
    found = []
    for document in DOCUMENTS:
        lines = document.read_text(encoding="utf-8").splitlines()
        for number, line in _code(lines).items():
            if _IS_COMMAND.match(line):
                text = re.sub(r"\s+(#\s|\s~/).*", "", line)
                text = re.sub(r" \[((?:-|http)[^\]]*)\]", r" \1", text)  # an optional part is typed, too
                before, after = "\n".join(lines[:number]), "\n".join(lines[number:])
                section = before.rpartition("\n#")[2] + after.partition("\n#")[0]
                found.append(Command(text, _place(document, number), section))
    return found


def strangers() -> list[str]:
    """Lines next to commands that are none that is known here."""
    found = []
    for document in DOCUMENTS:
        code = _code(document.read_text(encoding="utf-8").splitlines())
        known = {number for number, line in code.items() if _IS_COMMAND.match(line)}
        found += [_place(document, number) for number in code.keys() - known if {number - 1, number + 1} & known]
    return found


def _code(lines: list[str]) -> dict[int, str]:
    """The lines that are indented by four or fenced, by number, without those that are blank."""
    fenced, found = False, {}
    for number, line in enumerate(lines):
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and line.strip():
            found[number] = line.strip()
    return found


def _place(document: Path, number: int) -> str:
    return f"{document.relative_to(ROOT)}:{number + 1}"


def blocks(document: Path, kind: str) -> list[tuple[str, str]]:
    """The fenced blocks of this kind in a document, each with its place."""
    text = document.read_text(encoding="utf-8")
    return [
        (_place(document, text[: found.start()].count("\n")), found[1])
        for found in re.finditer(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


def inline_commands() -> list[Command]:
    """`duo …` in running text."""
    return [
        Command(text.replace("\n", " "), str(document.relative_to(ROOT)))
        for document in DOCUMENTS
        for text in re.findall(r"(?<!`)`(duo [^`]+)`(?!`)", _prose(document))
    ]


def with_predictions(recipes: str) -> str:
    """The text, with what `duo plan` predicts now below its command lines."""

    def predicted(found: re.Match[str]) -> str:
        run = duo(*shlex.split(found[1])[1:])
        assert run.status == 0, run.stderr
        return f"{found[1]}\n\n```text\n{run.text}```"

    return re.sub(
        r"(?<=^    )(duo plan [^\n]*)\n\n```text\n.*?```$", predicted, recipes, flags=re.MULTILINE | re.DOTALL
    )


def broken_links() -> list[str]:
    """Links to files and headings that are not there."""
    broken = []
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
            name, _, anchor = link.partition("#")
            path = document.parent / name if name else document
            if re.match(r"\w+:", link) or (path.exists() and (not anchor or anchor in _anchors(path))):
                continue
            broken.append(f"{document.relative_to(ROOT)}: {link}")
    return broken


def _prose(document: Path) -> str:
    text = document.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", _prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
