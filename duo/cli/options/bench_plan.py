"""What `duo bench` is asked to measure: its lists read and checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duo.bench.contestant import MODES, PLAIN
from duo.bench.lineup import found_peers
from duo.bench.peers import PROGRAMS
from duo.bench.prompts import Prompt, built_in, chosen, parse_prompts
from duo.cli.options.bench import BenchOptions
from duo.cli.options.prompt import read_file
from duo.config import AUTO_DRAFT
from duo.errors import UsageError

_DEFAULT_MODES = ("plain", "sync", "async", "auto")  # remote needs the memory of a second draft


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    modes: tuple[str, ...] | None  # None: whatever the models can do
    limits: dict[str, int | None]  # most candidates by their name; None is auto
    prompts: list[Prompt]
    peers: dict[str, Path]
    peers_were_found: bool  # not asked for

    @property
    def largest(self) -> int | None:
        """The most candidates of all, for which the contexts need room; None if all are auto."""
        if all(n is None for n in self.limits.values()):
            return None
        return max(n or AUTO_DRAFT for n in self.limits.values())

    def modes_for(self, has_draft: bool) -> tuple[str, ...]:
        """The modes to measure. Raises UsageError for one that needs a draft."""
        if has_draft:
            return self.modes or _DEFAULT_MODES
        if drafting := [mode for mode in self.modes or () if mode != PLAIN]:
            raise UsageError(f"--modes {drafting[0]} needs a draft: name one with -md or -hfd")
        return (PLAIN,)


def read_plan(options: BenchOptions) -> Plan:
    """Raises UsageError or PromptError."""
    prompts = built_in()
    if options.prompts is not None:
        prompts = parse_prompts(read_file(options.prompts, escape=False)[1])
    categories = None if options.categories is None else _split(options.categories, "--categories")
    return Plan(
        None if options.modes is None else _modes(options.modes),
        {name: _limit(name) for name in _split(options.limits, "--draft")},
        chosen(prompts, categories),
        found_peers() if options.peers is None else _peers(options.peers),
        options.peers is None,
    )


def _modes(text: str) -> tuple[str, ...]:
    modes = _split(text, "--modes")
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise UsageError(f"--modes: no mode {unknown[0]!r} (there are {', '.join(MODES)})")
    return tuple(modes)


def _limit(name: str) -> int | None:
    if name == "auto":
        return None
    if not name.isdecimal() or int(name) < 1:
        raise UsageError(f"--draft takes numbers of at least 1 and auto, not {name!r}")
    return int(name)


def _peers(text: str) -> dict[str, Path]:
    if text == "none":
        return {}
    found = {}
    for item in _split(text, "--peers"):
        name, equals, path = item.partition("=")
        if name not in PROGRAMS:
            raise UsageError(f"--peers: no program {name!r} is known (but {', '.join(PROGRAMS)})")
        if not equals or not Path(path).expanduser().is_file():
            raise UsageError(f"--peers takes {name}=PATH; there is no program {path!r}")
        if name in found:
            raise UsageError(f"--peers: {name} is named twice: measure one build after the other")
        found[name] = Path(path).expanduser().absolute()
    return found


def _split(text: str, option: str) -> Sequence[str]:
    """The items of a list, each once. Raises UsageError for none."""
    items = list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if not items:
        raise UsageError(f"{option} needs at least one name")
    return items
