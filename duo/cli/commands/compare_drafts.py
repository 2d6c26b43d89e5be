"""`duo tune` without -md: which draft makes a target fastest on this machine."""

import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from duo.bench.facts import run_facts, write_json
from duo.bench.rounds import built_in, loops, rounds
from duo.cli.commands.options import TuneOptions
from duo.cli.load import loaded
from duo.cli.options import read_argument
from duo.cli.terminal.console import blame, columns, note, progress_bar, size_of, with_options
from duo.cli.terminal.interrupts import on_interrupt
from duo.diagnose.draft_comparison import DraftComparison, DraftFigures
from duo.diagnose.measure import SIZES, Stopped
from duo.engine.engine import Engine
from duo.engine.recorder import SHARED, TRANSLATED
from duo.engine.statistics import ratio
from duo.errors import DuoError, PromptError
from duo.llama.gguf_header import GgufHeader, head_kind
from duo.loading import load, load_model
from duo.models.demo import demo_pair
from duo.models.draft_files import check_draft, find_candidates
from duo.models.families import family_of
from duo.models.fitting import expected_context, fit
from duo.models.hub import find_model
from duo.speculation.schedule import Schedule, fastest

_N_TEXTS = 2
_LEAST = 0.98  # of the fastest rate: two measurements differ by as much
_MAX_NAME = 41  # characters, so that the table has at most 100 columns
_HEADS = ("", "draft", "size", "vocabulary", "ms", "accepted", "schedule", "tokens/s", "gain")


@dataclass(slots=True)
class Found:
    """What was measured so far, as in --json."""

    target_ms: Sequence[float] = ()
    texts: Sequence[dict[str, int]] = ()
    ranking: list["Row"] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def skip(self, path: Path, error: DuoError) -> None:
        """`path` is no draft for this target; says why."""
        reason = with_options(str(error)).removeprefix(f"{path}: ")
        self.skipped.append({"path": str(path), "reason": reason})
        note(f"{path} is left out: {reason}")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; the fields are those of --json."""

    name: str
    tokens_per_s: float  # forecast
    gain: float  # as a multiple of the target alone
    schedule: Schedule = Schedule.OFF
    acceptance: float | None = None
    path: str | None = None  # of a draft, and the rest too
    bytes: int | None = None
    vocabulary: str | None = None
    draft_ms: float | None = None  # for a token of the target's vocabulary
    draft_ms_concurrent: float | None = None
    target_ms_concurrent: list[float] | None = None  # by tokens in the batch
    tokens_scored: int | None = None
    forecast_tokens_per_s: dict[Schedule, float] | None = None
    verified: int | None = None  # by the lookup, as the next
    accepted: int | None = None

    @classmethod
    def of(cls, path: Path, n_bytes: int, draft: DraftFigures) -> "Row":
        """That of a draft."""
        rates, costs = draft.rates, draft.policy.concurrent
        best = fastest(rates)
        rate, alone = rates[best], rates[Schedule.OFF]
        return cls(
            path.name, rate, rate / alone, best, draft.acceptance, str(path), n_bytes,
            TRANSLATED if draft.is_translated else SHARED, 1000 * draft.policy.alone.draft_s, 1000 * costs.draft_s,
            [1000 * s for s in costs.curve(SIZES[-1])], draft.n_scored, rates,
        )  # fmt: skip

    def cells(self, number: int) -> tuple[str, ...]:
        """Its line in the table."""
        half = _MAX_NAME // 2
        name = self.name if len(self.name) <= _MAX_NAME else f"{self.name[:half]}…{self.name[-half:]}"
        size = "" if self.bytes is None else size_of(self.bytes)
        ms = "" if self.draft_ms is None else f"{self.draft_ms:.2f}"
        share = "" if self.acceptance is None else f"{100 * self.acceptance:.0f} %"
        rate, gain = f"{self.tokens_per_s:.2f}", f"{self.gain:.2f}×"
        return str(number), name, size, self.vocabulary or "", ms, share, self.schedule.value, rate, gain


def compare_drafts(options: TuneOptions) -> int:
    """Measure and print a table. Returns the exit status. Raises DuoError."""
    if options.is_demo:
        with progress_bar() as bar:
            options = replace(options, model=demo_pair(bar, offline=options.engine.offline)[0])
        note(f"no model given (-m, -hf): using {options.model}")
    found, stop = Found(), threading.Event()
    with loaded(replace(options, model_draft=None, hf_repo_draft=None), options.predict) as engine:
        with progress_bar() as show, on_interrupt(stop.set) as interrupt, suppress(Stopped):
            _measure(engine, options, found, show, stop)
        if stop.is_set():
            note("interrupted" + (": the table has what was measured" if found.ranking else ""))
        about = run_facts(engine.slot, options) if options.json else None
        target = engine.slot.target
        family = family_of((target.path.name, options.hf_repo or "", target.header.text("general.name")))
    if rows := found.ranking:
        rows.sort(key=lambda row: -round(row.gain, 3))  # of equal ones, those that need less come first
        option = f"-hf {options.hf_repo}" if options.hf_repo else f"-m {shlex.quote(str(options.model))}"
        table = columns([_HEADS, *(row.cells(number) for number, row in enumerate(rows, 1))], {1, 3, 6})
        said = [*table, "", advise(rows, option)]
        tried = [row.name for row in rows if row.path] + [Path(each["path"]).name for each in found.skipped]
        if rows[0].path is None and family is not None and not any(map(family.is_draft, tried)):  # none pays
            compare = f" To compare it: duo tune {option} -hfd {family.draft}"
            said.append(family.advice + (compare if family.draft else ""))
        print("\n".join(said))  # noqa: T201 - the output
        if options.json:
            with blame("--json", options.json):
                write_json(options.json, about, found)
    return interrupt.status


def prompts_of(options: TuneOptions, engine: Engine) -> list[list[int]]:
    """The tokens of the prompts to measure with, in the target's chat template unless they are raw."""
    own = [read_argument(text, "-p", escape=True) for text in options.prompts or ()]
    texts = own or [prompt.text for prompt in rounds(built_in(), _N_TEXTS)]
    if not options.raw:
        with suppress(PromptError):  # there is no template
            texts = [engine.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    return [engine.tokenize(text) for text in texts]


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
    engine: Engine, options: TuneOptions, found: Found, show: Callable[..., None], stop: threading.Event
) -> None:
    """Fill `found`. Raises Stopped after Ctrl-C, or DuoError for what the target cannot do."""
    prompts = prompts_of(options, engine)
    target = engine.slot.target
    with closing(
        engine.call(lambda _: DraftComparison(target, options.engine, prompts, options.predict, show, stop, note))
    ) as comparison:
        lookup = comparison.lookup()
        found.target_ms = [1000 * s for s in lookup.target_s]
        found.texts = [{"prompt_tokens": len(prompt), "tokens": len(text)} for prompt, text in comparison.texts]
        rate, alone, n, right = lookup.rate, 1 / lookup.target_s[0], lookup.n_verified, lookup.n_accepted
        by_lookup = Row("lookup", rate, rate / alone, acceptance=ratio(right, n), verified=n, accepted=right)
        found.ranking += [Row("none", alone, 1.0), by_lookup]
        if n_loops := sum(loops(engine.detokenize(text), engine.detokenize(p)) for p, text in comparison.texts):
            note(f"{n_loops} of {len(prompts)} texts repeat themselves, which favours lookup and any draft: use -p")
        if target.has_mtp:
            note("its MTP layer, which drafts without any option, is not compared here: --heads off in a run shows it")
        paths = _candidates(options, target.path, found)
        if not paths:
            note("there is no draft to compare: name GGUF files, or folders with some")

        def measure(path: Path, number: int) -> None:
            def show_draft(what: str, done: float, total: float | None = 1.0) -> bool:
                show(f"draft {number} of {len(paths)}: {what}", done, total)
                return not stop.is_set()

            def show_head(what: str, done: float, total: float | None) -> None:
                if not show_draft(what, done, total):
                    raise Stopped

            check_draft(path, target.path)
            if head_kind(GgufHeader(path)):
                config, _ = fit(options.engine.draft_model(path), None, expected_context(options.engine), name="draft")
                with closing(load_model(config, show_head)) as head:
                    figures = engine.call(lambda _: comparison.measure_draft(head, show_draft))
                    found.ranking.append(Row.of(path, head.n_bytes, figures))
                return
            n_layers, devices = options.engine.draft_n_gpu_layers, options.engine.draft_devices
            with load(path, n_gpu_layers=n_layers, devices=devices, progress=show_draft) as draft:
                model = draft.slot.target
                figures = engine.call(lambda _: comparison.measure_draft(model, show_draft))
                found.ranking.append(Row.of(path, model.n_bytes, figures))

        for number, path in enumerate(paths, 1):
            try:
                measure(path, number)
            except DuoError as error:
                if stop.is_set():
                    raise Stopped from None
                found.skip(path, error)


def _candidates(options: TuneOptions, target: Path, found: Found) -> list[Path]:
    """The files to measure, or to say why they are left out."""
    given, draft = [Path(name) for name in options.names or ()], options.model_names()[1]
    if draft is not None:
        try:
            given.insert(0, find_model(draft, offline=options.engine.offline))
        except DuoError as error:
            found.skip(Path(draft), error)
    return find_candidates(given, target)
