"""Parses and checks the list options of `duo bench`, before any model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duo.bench.contestant import ALONE, MODES
from duo.bench.peers import PROGRAMS, found_on_path
from duo.bench.prompts import Prompt, built_in, chosen, parse_prompts
from duo.cli.options.bench import BenchOptions
from duo.cli.options.prompt import read_file
from duo.config import AUTO_DRAFT
from duo.errors import UsageError

_MAX_DIGITS = 40  # of a number; Python refuses to convert thousands
_DEFAULT_MODES = ("plain", "sync", "async", "auto")  # without remote, which needs memory for a second draft


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    modes: tuple[str, ...] | None  # None: all that the models support
    limits: dict[str, int | None]  # maximum candidates per batch, by name; None is auto
    prompts: list[Prompt]
    peers: dict[str, Path]
    peers_were_found: bool  # on the PATH, not requested

    @property
    def largest(self) -> int | None:
        """The largest limit, which the contexts must have room for; None if all are auto."""
        if all(n is None for n in self.limits.values()):
            return None
        return max(n or AUTO_DRAFT for n in self.limits.values())

    def modes_for(self, has_draft: bool) -> tuple[str, ...]:
        """The modes to measure. Raises UsageError if a mode needs a draft and there is none."""
        if has_draft:
            return self.modes or _DEFAULT_MODES
        if drafting := [mode for mode in self.modes or () if mode not in ALONE]:
            raise UsageError(f"--modes {drafting[0]} needs a draft: name one with -md or -hfd")
        return self.modes or ALONE


def read_plan(options: BenchOptions) -> Plan:
    """Parse the options. Raises UsageError or PromptError."""
    prompts = built_in()
    if options.prompts is not None:
        prompts = parse_prompts(read_file(options.prompts, escape=False)[1])
    categories = None if options.categories is None else _split(options.categories, "--categories")
    return Plan(
        None if options.modes is None else _modes(options.modes),
        {name: _limit(name) for name in _split(options.limits, "--draft")},
        chosen(prompts, categories),
        found_on_path() if options.peers is None else _peers(options.peers),
        options.peers is None,
    )


def _modes(text: str) -> tuple[str, ...]:
    modes = _split(text, "--modes")
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise UsageError(f"--modes: unknown mode {unknown[0]!r} (available: {', '.join(MODES)})")
    return tuple(modes)


def _limit(name: str) -> int | None:
    if name == "auto":
        return None
    if not name.isdecimal() or len(name) > _MAX_DIGITS or int(name) < 1:
        raise UsageError(f"--draft: {name!r} is neither a number of at least 1 nor auto")
    return int(name)


def _peers(text: str) -> dict[str, Path]:
    if text == "none":
        return {}
    found = {}
    for item in _split(text, "--peers"):
        name, equals, path = item.partition("=")
        if name not in PROGRAMS:
            raise UsageError(f"--peers: unknown program {name!r} (available: {', '.join(PROGRAMS)})")
        if not equals or not Path(path).expanduser().is_file():
            raise UsageError(f"--peers {name}={path}: no such file: use {name}=PATH")
        if name in found:
            raise UsageError(f"--peers: {name} is given twice: measure each build in a separate run")
        found[name] = Path(path).expanduser().absolute()
    return found


def _split(text: str, option: str) -> Sequence[str]:
    """The distinct items of a list. Raises UsageError for an empty list."""
    items = list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if not items:
        raise UsageError(f"{option}: the list is empty")
    return items
