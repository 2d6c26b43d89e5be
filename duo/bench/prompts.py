"""The prompts of a benchmark by category, and their order over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from duo.errors import PromptError, UsageError

OWN = "own"  # the category of prompts before the first heading


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its category."""

    category: str
    text: str


def built_in() -> list[Prompt]:
    """The built-in prompts, in eight categories."""
    return parse_prompts((files("duo.bench") / "prompts.txt").read_text(encoding="utf-8"))


def parse_prompts(text: str) -> list[Prompt]:
    r"""Parse one prompt per line, with \n for a line break; a line `[name]` starts a category.

    Empty lines are ignored. Raises PromptError without prompts.
    """
    found, category = [], OWN
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            category = line[1:-1].strip()
        elif line:
            found.append(Prompt(category, line.replace("\\n", "\n")))
    if not found:
        raise PromptError("the prompts file is empty: write one prompt per line")
    return found


def chosen(prompts: Sequence[Prompt], categories: Sequence[str]) -> list[Prompt]:
    """The prompts of `categories`, in that order. Raises UsageError for an unknown category."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    if unknown := [name for name in categories if name not in known]:
        raise UsageError(f"categories: unknown category {unknown[0]!r} (available: {', '.join(known)})", "categories")
    return [prompt for name in categories for prompt in prompts if prompt.category == name]


def rounds(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """The prompts of `n` rounds: round-robin over the categories, and over the prompts of each category."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    kinds = list(by_category.values())
    laps = [divmod(i, len(kinds)) for i in range(n)]
    return [kinds[which][lap % len(kinds[which])] for lap, which in laps]
