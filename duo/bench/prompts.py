"""The prompts of a benchmark, by category, and which of them each round takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from duo.errors import PromptError, UsageError

OWN = "own"  # the category of prompts before the first heading


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its kind."""

    category: str
    text: str


def built_in() -> list[Prompt]:
    """Our own prompts, of eight categories."""
    return parse_prompts((files("duo.bench") / "prompts.txt").read_text(encoding="utf-8"))


def parse_prompts(text: str) -> list[Prompt]:
    r"""One prompt in each line, in which \n is a line break; `[name]` alone begins a category.

    Empty lines mean nothing. Raises PromptError if there is no prompt.
    """
    found, category = [], OWN
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            category = line[1:-1].strip()
        elif line:
            found.append(Prompt(category, line.replace("\\n", "\n")))
    if not found:
        raise PromptError("there is no prompt: write one in each line")
    return found


def chosen(prompts: Sequence[Prompt], categories: Sequence[str] | None) -> list[Prompt]:
    """Those of these categories, in their order; all for None. Raises UsageError for one that there is not."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    if categories is None:
        return list(prompts)
    if unknown := [name for name in categories if name not in known]:
        raise UsageError(f"categories: no prompt of {unknown[0]!r} (there are {', '.join(known)})", "categories")
    return [prompt for name in categories for prompt in prompts if prompt.category == name]


def rounds(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """The prompts of `n` rounds: one category after the other, and in each one prompt after the other."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    kinds = list(by_category.values())
    laps = [divmod(i, len(kinds)) for i in range(n)]
    return [kinds[which][lap % len(kinds[which])] for lap, which in laps]
