"""Parses and checks the list options of `duo bench`, before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duo.bench.contestant import ALONE, MODES
from duo.bench.emulation import Emulation
from duo.bench.machines import read_pair
from duo.bench.peers import PROGRAMS, found_on_path
from duo.bench.prompts import Prompt, built_in, chosen, parse_prompts
from duo.cli.options.bench import BenchOptions
from duo.cli.options.prompt import read_file
from duo.config import AUTO_DRAFT
from duo.errors import UsageError

_MAX_DIGITS = 40  # of a number; Python refuses to convert thousands
_DEFAULT_MODES = ("plain", "sync", "async", "auto")  # without remote, which needs memory for a second draft
_EMULATED_MODES = ("plain", "sync", "async", "prepared")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    modes: tuple[str, ...] | None  # None: all that the models support
    limits: dict[str, int | None]  # maximum candidates per batch, by name; None is auto
    prompts: list[Prompt]
    peers: dict[str, Path]
    peers_were_found: bool  # on the PATH, not requested
    emulation: Emulation | None = None  # of the devices

    @property
    def largest(self) -> int | None:
        """The largest limit, which the contexts must have room for; None if all are auto."""
        if all(n is None for n in self.limits.values()):
            return None
        return max(n or AUTO_DRAFT for n in self.limits.values())

    def modes_for(self, has_draft: bool) -> tuple[str, ...]:
        """The modes to measure. Raises UsageError if a mode needs a draft and there is none."""
        if has_draft:
            return self.modes or self._default_modes
        if drafting := [mode for mode in self.modes or () if mode not in ALONE]:
            raise UsageError(f"--modes {drafting[0]} needs a draft: name one with -md or -hfd")
        return self.modes or ALONE

    @property
    def _default_modes(self) -> tuple[str, ...]:
        if self.emulation is None:
            return _DEFAULT_MODES
        return tuple(mode for mode in _EMULATED_MODES if mode not in self.emulation.impossible_modes)


def read_plan(options: BenchOptions) -> Plan:
    """Parse the options. Raises UsageError or PromptError."""
    prompts = built_in()
    if options.prompts is not None:
        prompts = parse_prompts(read_file(options.prompts, escape=False)[1])
    categories = None if options.categories is None else _split(options.categories, "--categories")
    modes = None if options.modes is None else _modes(options.modes)
    limits = {name: _limit(name) for name in _split(options.limits, "--draft")}
    return Plan(
        modes,
        limits,
        chosen(prompts, categories),
        *_programs(options),
        _emulation(options, limits, modes or ()),
    )


def _programs(options: BenchOptions) -> tuple[dict[str, Path], bool]:
    """The programs to compare with, and whether they were not requested. None is on emulated devices."""
    if options.machine is None:
        return (found_on_path(), True) if options.peers is None else (_peers(options.peers), False)
    if options.peers is not None and _peers(options.peers):
        raise UsageError("--peers: other programs' devices cannot be emulated: leave out --peers or --machine")
    return {}, False


def _emulation(options: BenchOptions, limits: Mapping[str, int | None], modes: Sequence[str]) -> Emulation | None:
    if options.machine is None:
        if options.slow_down != 1:
            raise UsageError("--slow-down is about emulated devices: name some with --machine")
        return None
    if options.plot is not None:
        raise UsageError("--plot: there are no plots of emulated devices: leave out --plot or --machine")
    found = Emulation(read_pair(options.machine, max(n or AUTO_DRAFT for n in limits.values())), options.slow_down)
    if wrong := [mode for mode in modes if mode in found.impossible_modes]:
        raise UsageError(f"--modes {wrong[0]}: {found.impossible_modes[wrong[0]]}")
    return found


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
