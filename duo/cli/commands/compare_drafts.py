"""`duo tune` without -md: which draft makes a target fastest on this machine."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from duo.bench.prompts import built_in, rounds
from duo.bench.texts import loops
from duo.cli.inputs import read_argument
from duo.cli.load import loaded
from duo.cli.options.by_command import TuneOptions
from duo.cli.terminal.console import columns, progress_bar, say, size_of
from duo.cli.terminal.files import blame
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.option_names import with_options
from duo.cli.terminal.run_statistics import Facts, write_json
from duo.diagnose.draft_comparison import (
    DraftComparison,
    DraftFigures,
    LookupFigures,
    TargetFigures,
    replay_lookup,
)
from duo.diagnose.target_meter import Stopped
from duo.engine.engine import Engine
from duo.engine.metrics import SHARED, TRANSLATED
from duo.errors import DuoError, PromptError
from duo.loading import load
from duo.models.demo import demo_pair
from duo.models.draft_files import check_draft, find_candidates
from duo.models.families import family_of
from duo.models.hub import find_model
from duo.spec.schedule import Schedule

_N_TEXTS = 2
_LEAST = 0.98  # of the fastest rate: two measurements differ by as much
_MAX_NAME = 41  # characters, so that the table has at most 100 columns
_HEADS = ("", "draft", "size", "vocabulary", "ms", "accepted", "schedule", "tokens/s", "gain")
_LEFT = {1, 3, 6}

Show = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; the fields are those of --json, where `details` are merged into them."""

    name: str
    tokens_per_s: float  # forecast
    gain: float  # as a multiple of the target alone
    schedule: Schedule = Schedule.OFF
    path: str | None = None  # of a draft
    bytes: int | None = None
    vocabulary: str | None = None
    draft_ms: float | None = None  # for a token of the target's vocabulary
    acceptance: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def cells(self, number: int) -> tuple[str, ...]:
        """Its line in the table."""
        return (
            str(number),
            shortened(self.name),
            "" if self.bytes is None else size_of(self.bytes),
            self.vocabulary or "",
            "" if self.draft_ms is None else f"{self.draft_ms:.2f}",
            "" if self.acceptance is None else f"{100 * self.acceptance:.0f} %",
            self.schedule.value,
            f"{self.tokens_per_s:.2f}",
            f"{self.gain:.2f}×",
        )


@dataclass(slots=True)
class Found:
    """What was measured so far."""

    target: TargetFigures | None = None
    lookup: LookupFigures | None = None
    drafts: dict[Path, tuple[int, DraftFigures]] = field(default_factory=dict)  # with their bytes
    skipped: dict[str, str] = field(default_factory=dict)  # why, by name

    def skip(self, path: Path, error: DuoError) -> None:
        """`path` is no draft for this target; says why."""
        reason = with_options(str(error)).removeprefix(f"{path}: ")
        self.skipped[str(path)] = reason
        say(f"duo: {path} is left out: {reason}")


def compare_drafts(options: TuneOptions) -> int:
    """Measure and print a table. Returns the exit status. Raises DuoError."""
    if options.is_demo:
        with progress_bar() as bar:
            options = replace(options, model=demo_pair(bar, offline=options.engine.offline)[0])
        say(f"duo: no model given (-m, -hf): using {options.model}")
    found, stop = Found(), threading.Event()
    with loaded(replace(options, model_draft=None, hf_repo_draft=None), options.predict) as engine:
        prompts = prompts_of(options, engine)
        with progress_bar() as show, on_interrupt(stop.set) as interrupt, suppress(Stopped):
            _measure(engine, options, prompts, found, show, stop)
        if stop.is_set():
            say("duo: interrupted" + ("" if found.target is None else ": the table has what was measured"))
        facts = Facts.of(engine.slot, options) if options.json else None
        target = engine.slot.target
        family = family_of((target.path.name, options.hf_repo or "", target.metadata("general.name") or ""))
    if found.target is not None:
        rows = rank(found)
        said = [*render(rows), "", advise(rows, _target_option(options))]
        tried = [path.name for path in (*found.drafts, *map(Path, found.skipped))]
        if rows[0].path is None and family is not None and not any(map(family.is_draft, tried)):  # none pays
            compare = f" To compare it: duo tune {_target_option(options)} -hfd {family.draft}"
            said.append(family.advice + (compare if family.draft else ""))
        print("\n".join(said))  # noqa: T201 - the output
        if options.json:
            with blame("--json", options.json):
                write_json(options.json, facts, _figures(found, rows))
    return interrupt.status


def prompts_of(options: TuneOptions, engine: Engine) -> list[list[int]]:
    """The tokens of the prompts to measure with, in the target's chat template unless they are raw."""
    own = [read_argument(text, "-p", escape=True) for text in options.prompts or ()]
    texts = own or [prompt.text for prompt in rounds(built_in(), _N_TEXTS)]
    return [engine.tokenize(text if options.raw else _as_chat(engine, text)) for text in texts]


def _as_chat(engine: Engine, text: str) -> str:
    """`text` in the target's chat template, if it has one."""
    try:
        return engine.apply_chat_template([{"role": "user", "content": text}])
    except PromptError:
        return text


def rank(found: Found) -> list[Row]:
    """The rows, the fastest first; of equal ones those that need less."""
    assert found.target is not None
    alone = 1 / found.target.target_s[0]
    rows = [Row("none", alone, 1.0)]
    if (lookup := found.lookup) is not None:
        accepted = lookup.n_accepted / lookup.n_verified if lookup.n_verified else None
        counts = {"verified": lookup.n_verified, "accepted": lookup.n_accepted}
        rows.append(Row("lookup", lookup.rate, lookup.rate / alone, acceptance=accepted, details=counts))
    for path, (n_bytes, draft) in found.drafts.items():
        rate = alone if draft.best is Schedule.OFF else draft.rates[draft.best]
        details = {
            "draft_ms_concurrent": 1000 * draft.machine.concurrent_draft_s,
            "target_ms_concurrent": [1000 * seconds for seconds in draft.machine.concurrent_target_s],
            "tokens_scored": len(draft.scores),
            "forecast_tokens_per_s": draft.rates,
        }
        vocabulary, ms = TRANSLATED if draft.is_translated else SHARED, 1000 * draft.machine.draft_s
        kind = (str(path), n_bytes, vocabulary, ms, draft.acceptance, details)
        rows.append(Row(path.name, rate, rate / alone, draft.best, *kind))
    return sorted(rows, key=lambda row: -round(row.gain, 3))


def shortened(name: str) -> str:
    """A name that fits the table: its middle is left out."""
    half = _MAX_NAME // 2
    return name if len(name) <= _MAX_NAME else f"{name[:half]}…{name[-half:]}"


def render(rows: Sequence[Row]) -> list[str]:
    """The table, at most 100 columns wide."""
    return columns([_HEADS, *(row.cells(number) for number, row in enumerate(rows, 1))], _LEFT)


def advise(rows: Sequence[Row], target: str) -> str:
    """The command to use; `target` is the option with the target's name."""
    best = rows[0]
    if best.path is not None:
        return f"Fastest: duo {target} -md {shlex.quote(best.path)}"
    reason = "no draft pays" if any(row.path for row in rows) else "without a draft"
    if best.name == "lookup":
        return f"Fastest: duo {target} ({reason}, lookup is on by default)"
    costs = any(row.name == "lookup" and row.gain < _LEAST * best.gain for row in rows)
    return f"Fastest: duo {target}{' --lookup off' if costs else ''} ({reason})"


def _measure(
    engine: Engine,
    options: TuneOptions,
    prompts: Sequence[Sequence[int]],
    found: Found,
    show: Show,
    stop: threading.Event,
) -> None:
    """Fill `found`. Raises Stopped after Ctrl-C, or DuoError for what the target cannot do."""
    target = engine.slot.target
    make = partial(DraftComparison, target, options.engine, prompts, options.predict, _note)
    with engine.call(lambda _: make()) as comparison:
        figures = engine.call(lambda _: comparison.measure_target(show, stop))
        found.lookup = replay_lookup(figures, comparison.n_max)
        found.target = figures
        n_loops = sum(loops(engine.detokenize(text), engine.detokenize(prompt)) for prompt, text in figures.texts)
        if n_loops:
            say(f"duo: {n_loops} of {len(prompts)} texts repeat themselves, which favours lookup and any draft: use -p")
        paths = _candidates(options, target.path, found)
        if not paths:
            say("duo: there is no draft to compare: name GGUF files, or folders with some")
        for i, path in enumerate(paths):
            show_draft = partial(_show_one, show, f"draft {i + 1} of {len(paths)}: ")
            try:
                check_draft(path, target.path)
                with _loaded_draft(path, options, show_draft, stop) as draft:
                    model = draft.slot.target
                    result = engine.call(lambda _: comparison.measure_draft(model, figures, show_draft, stop))  # noqa: B023
                    found.drafts[path] = model.n_bytes, result
            except DuoError as error:
                if stop.is_set():
                    raise Stopped from None
                found.skip(path, error)


def _note(text: str) -> None:
    say(f"duo: {text}")


def _show_one(show: Show, prefix: str, what: str, share: float) -> None:
    show(prefix + what, share)


def _candidates(options: TuneOptions, target: Path, found: Found) -> list[Path]:
    """The files to measure, or to say why they are left out."""
    given = [Path(name) for name in options.names or ()]
    _, draft = options.model_names()
    if draft is not None:
        try:
            given.insert(0, find_model(draft, offline=options.engine.offline))
        except DuoError as error:
            found.skip(Path(draft), error)
    return find_candidates(given, target)


def _loaded_draft(path: Path, options: TuneOptions, show: Show, stop: threading.Event) -> Engine:
    """A draft, placed as the options for the draft say. Raises DuoError, also once `stop` is set."""

    def on_progress(what: str, done: float, total: float | None) -> bool:
        show(what, done / total if total else 0.0)
        return not stop.is_set()

    return load(
        path,
        n_gpu_layers=options.engine.draft_n_gpu_layers,
        devices=options.engine.draft_devices,
        progress=on_progress,
    )


def _target_option(options: TuneOptions) -> str:
    """The option that names the target."""
    return f"-hf {options.hf_repo}" if options.hf_repo else f"-m {shlex.quote(str(options.model))}"


def _figures(found: Found, rows: Sequence[Row]) -> dict[str, Any]:
    """All figures, as JSON types."""
    assert found.target is not None
    return {
        "target_ms": [1000 * seconds for seconds in found.target.target_s],
        "texts": [{"prompt_tokens": len(prompt), "tokens": len(text)} for prompt, text in found.target.texts],
        "ranking": [{k: v for k, v in asdict(row).items() if k != "details"} | row.details for row in rows],
        "skipped": [{"path": path, "reason": reason} for path, reason in found.skipped.items()],
    }
