"""`duo tune` without -md: which draft makes a target fastest on this machine."""

import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from duo.bench.contestants import greedy, write
from duo.bench.results import run_facts, write_json
from duo.bench.rounds import built_in, loops, rounds
from duo.cli.commands.options import TuneOptions
from duo.cli.load import loaded
from duo.cli.options import read_prompts
from duo.cli.terminal.console import blame, columns, note, progress_bar, size_of, with_options
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import AUTO_DRAFT
from duo.diagnose.measure import SIZES, Interrupted, Meter, Text, check_measurable, measure_pair
from duo.diagnose.prospects import curve, forecasts_of
from duo.engine.contexts import target_context, warm_up
from duo.engine.engine import Engine
from duo.engine.model_pair import ModelPair
from duo.engine.recorder import SHARED, TRANSLATED
from duo.engine.statistics import ratio
from duo.engine.translated import Translation
from duo.errors import DuoError, ModelError, PromptError
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.heads import check_pair
from duo.llama.model import Model
from duo.loading import load_model
from duo.models.demo import demo_pair
from duo.models.draft_files import check_draft, family_of, find_candidates
from duo.models.fitting import expected_context, fit
from duo.models.hub import find_model
from duo.speculation.modes import Schedule, fastest

_N_TEXTS = 2
_LEAST = 0.98  # of the fastest rate: two measurements differ by as much
_LEAST_CTX = 256  # enough for what is timed
_BOTH = (1, 2, 4, 8, SIZES[-1])  # sizes that are timed with a concurrent draft
_MAX_NAME = 41  # characters, so that the table has at most 100 columns
_HEADS = ("", "draft", "size", "vocabulary", "ms", "accepted", "schedule", "tokens/s", "gain")


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

    def cells(self, number: int) -> tuple[str, ...]:
        """The cells of the line."""
        half = _MAX_NAME // 2
        name = self.name if len(self.name) <= _MAX_NAME else f"{self.name[:half]}…{self.name[-half:]}"
        size = "" if self.bytes is None else size_of(self.bytes)
        ms = "" if self.draft_ms is None else f"{self.draft_ms:.2f}"
        share = "" if self.acceptance is None else f"{100 * self.acceptance:.0f} %"
        rate, gain = f"{self.tokens_per_s:.2f}", f"{self.gain:.2f}×"
        return str(number), name, size, self.vocabulary or "", ms, share, self.schedule.value, rate, gain


@dataclass(slots=True)
class Found:
    """What was measured so far, as in --json."""

    target_ms: Sequence[float] = ()
    texts: Sequence[dict[str, int]] = ()
    ranking: list[Row] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def skip(self, path: Path, error: DuoError) -> None:
        """Leave out `path`, which is no draft for this target, and say why."""
        reason = with_options(str(error)).removeprefix(f"{path}: ")
        self.skipped.append({"path": str(path), "reason": reason})
        note(f"{path} is left out: {reason}")


def compare_drafts(options: TuneOptions) -> int:
    """Measure and print a table. Returns the exit status. Raises DuoError."""
    if options.is_demo:
        with progress_bar() as bar:
            options = replace(options, model=demo_pair(bar, offline=options.engine.offline)[0])
        note(f"no model given (-m, -hf): using {options.model}")
    alone = replace(options, model_draft=None, hf_repo_draft=None, engine=replace(options.engine, lookup="auto"))
    with loaded(alone, options.predict) as engine, progress_bar() as show:
        comparison = _Comparison(engine, options, show)
        with on_interrupt(comparison.stop) as interrupt, suppress(Interrupted):
            comparison.measure()
        found = comparison.found
        if interrupt.signal:
            note("interrupted" + (": the table has what was measured" if found.ranking else ""))
        about = run_facts(engine.slot, options) if options.json else None
        target = engine.slot.target
        family = family_of((target.path.name, options.hf_repo or "", target.header.text("general.name")))
    if rows := found.ranking:
        rows.sort(key=lambda row: -round(row.gain, 3))  # of equal ones, those that need less come first
        option = f"-hf {options.hf_repo}" if options.hf_repo else f"-m {shlex.quote(str(options.model))}"
        table = columns([_HEADS, *(row.cells(number) for number, row in enumerate(rows, 1))], {1, 3, 6})
        is_open = interrupt.signal and not any(row.path for row in rows)
        said = [*table, "", "No draft was measured." if is_open else advise(rows, option)]
        tried = [row.name for row in rows if row.path] + [Path(each["path"]).name for each in found.skipped]
        none_pays = rows[0].path is None and not is_open
        if none_pays and family is not None and not any(map(family.is_draft, tried)):
            compare = f" To compare it: duo tune {option} -hfd {family.draft}"
            said.append(family.advice + (compare if family.draft else ""))
        print("\n".join(said))  # noqa: T201 - the output
        if options.json:
            with blame("--json", options.json):
                write_json(options.json, about, found)
    return interrupt.status


def prompts_of(options: TuneOptions, engine: Engine) -> list[list[int]]:
    """The tokens of the prompts to measure with, in the target's chat template unless they are raw."""
    texts = read_prompts(options.prompts) or [prompt.text for prompt in rounds(built_in(), _N_TEXTS)]
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


class _Comparison:
    """Times a target, which writes texts, and then any number of drafts."""

    def __init__(self, engine: Engine, options: TuneOptions, show: Callable[..., None]) -> None:
        self.found = Found()
        self._engine, self._options, self._show = engine, options, show
        self._target, self._n_threads = engine.slot.target, engine.slot.threads.target
        self._prompts = prompts_of(options, engine)
        self._size = max(_LEAST_CTX - options.predict, *map(len, self._prompts)), options.predict  # of contexts
        self._stop = threading.Event()
        self._alone: dict[int, float] = {}  # times of the target
        self._texts: list[Text] = []

    def stop(self) -> None:
        """End measure(). From any thread."""
        self._stop.set()
        self._engine.interrupt()

    def measure(self) -> None:
        """Fill `found`. Raises Interrupted once it is stopped, or DuoError for what the target cannot do."""
        found, target = self.found, self._target
        if sum(self._size) > target.n_ctx_train:
            what = f"a prompt and {self._options.predict} more tokens"
            raise PromptError(f"{what} exceed the {target.n_ctx_train} of the model's context")
        self._alone = self._engine.call(self._measure_target)
        self._write()
        texts = [(self._engine.detokenize(text), self._engine.detokenize(prompt)) for prompt, text in self._texts]
        if n_loops := sum(loops(*each) for each in texts):
            note(f"{n_loops} of {len(texts)} texts repeat themselves, which favours lookup and any draft: use -p")
        if target.has_mtp:
            note("its MTP layer, which drafts without any option, is not compared here: --heads off in a run shows it")
        self._engine.call(ModelPair.close)  # makes room for the contexts of each pair
        paths = self._candidates()
        if not paths:
            note("there is no draft to compare: name GGUF files, or folders with some")
        for number, path in enumerate(paths, 1):
            try:
                self._measure_draft(path, f"draft {number} of {len(paths)}")
            except DuoError as error:
                if self._stop.is_set():
                    raise Interrupted from None
                found.skip(path, error)

    def _measure_target(self, slot: ModelPair) -> dict[int, float]:
        target, n = self._target, self._n_threads
        with closing(target_context(target, slot.config, slot.threads, sum(self._size), AUTO_DRAFT)) as context:
            if target.is_recurrent or not context.probe_rollback():
                raise ModelError(f"{target.path}: it cannot roll back its cache, so nothing can be drafted for it")
            if slot.config.warmup:
                warm_up(context, target, SIZES[-1], SIZES[-1])
            meter = Meter(context, None, self._show, self._stop, note)
            expected_s, limit_s = self._announce(meter, n, 1)
            each = f"about {expected_s} s for the target and as much for each draft, at most {limit_s} s each"
            note(f"measuring takes {each}")
            return meter.measure([n]).target[n]

    def _announce(self, meter: Meter, n_threads: int, n_groups: float) -> tuple[int, int]:
        n_tokens = self._options.predict * len(self._prompts)
        return meter.announce(n_threads, n_groups, n_tokens, self._target.places)

    def _write(self) -> None:
        """Let the target write the texts with lookup: makes the rows of lookup and of the target alone."""
        n_tokens, n_verified, n_accepted, seconds = 0, 0, 0, 0.0
        target_s = curve({n: 1000 * s for n, s in self._alone.items()}, self._engine.slot.drafting.n_most + 1)
        for i, prompt in enumerate(self._prompts):
            self._show(f"text {i + 1} of {len(self._prompts)}", 0.0)
            proposers = self._engine.slot.proposers(drafts=False, remote=False)
            text, steps = write(self._engine, prompt, greedy(self._options.predict), proposers)
            self._texts.append((prompt, text.tokens))
            n_verified, n_accepted = n_verified + text.statistics.verified, n_accepted + text.statistics.accepted
            n_tokens += sum(step.n_tokens for step in steps[1:])  # the first token belongs to the prefill
            seconds += sum(target_s[step.n_candidates] for step in steps[1:])
        alone = 1 / target_s[0]
        rate = ratio(n_tokens, seconds) or alone
        self.found.target_ms = [1000 * s for s in target_s[: SIZES[-1]]]
        self.found.texts = [{"prompt_tokens": len(prompt), "tokens": len(text)} for prompt, text in self._texts]
        acceptance = ratio(n_accepted, n_verified)
        by_lookup = Row("lookup", rate, rate / alone, acceptance=acceptance, verified=n_verified, accepted=n_accepted)
        self.found.ranking += [Row("none", alone, 1.0), by_lookup]

    def _candidates(self) -> list[Path]:
        """The files to measure, or to say why they are left out."""
        options = self._options
        given, draft = [Path(name) for name in options.names or ()], options.model_names()[1]
        if draft is not None:
            try:
                given.insert(0, find_model(draft, offline=options.engine.offline))
            except DuoError as error:
                self.found.skip(Path(draft), error)
        return find_candidates(given, self._target.path)

    def _measure_draft(self, path: Path, name: str) -> None:
        def show(what: str, done: float, total: float | None = 1.0) -> None:
            self._show(f"{name}: {what}", done, total)
            if self._stop.is_set():
                raise Interrupted

        check_draft(path, self._target.path)
        config = self._options.engine
        placed, _ = fit(config.draft_model(path), None, expected_context(config), name="draft")
        with closing(load_model(placed, show)) as draft:
            self.found.ranking.append(self._engine.call(lambda _: self._row(draft, show)))

    def _row(self, draft: Model, show: Callable[..., None]) -> Row:
        """Time the draft, alone and concurrently, and let it predict the texts. Raises DuoError."""
        target, has_head = self._target, bool(draft.head_kind)
        if has_head:
            check_pair(target, draft)
        elif not draft.can_roll_back:
            raise ModelError(f"{draft.path}: it cannot roll back its cache")
        check_measurable(draft)
        differs = not has_head and vocabulary_difference(target, draft) is not None
        config = replace(self._options.engine, schedule="auto", branches=0, draft_n_max=None)
        translation = Translation(target, draft) if differs else None
        with closing(ModelPair(target, draft, config, translation=translation)) as pair:
            pair.reserve(*self._size)
            if pair.target_cache is None or pair.draft_cache is None:
                raise ModelError(f"{target.path}: it cannot roll back its cache, so nothing can be drafted for it")
            threads, contexts = pair.threads, (pair.target_cache.context, pair.draft_cache.context)
            meter = Meter(*contexts, show, self._stop, note)
            self._announce(meter, max(self._n_threads, sum(threads.concurrent)), len(_BOTH) / len(SIZES))
            alone = {self._n_threads: self._alone}
            found = measure_pair(pair, meter, self._texts, alone, threads.draft, [threads.concurrent], _BOTH)
            n_max = min(AUTO_DRAFT, pair.target_cache.context.n_rollback or AUTO_DRAFT)
            estimates = found.estimates(self._n_threads, pair.threads.concurrent, n_max)
        rates = {schedule: each.rate for schedule, each in forecasts_of(estimates).items()}
        best, costs = fastest(rates), estimates.costs
        return Row(
            draft.path.name, rates[best], rates[best] / rates[Schedule.OFF], best, found.acceptance, str(draft.path),
            draft.n_bytes, TRANSLATED if differs else SHARED,
            1000 * costs.alone.token_s, 1000 * costs.concurrent.token_s,
            [1000 * s for s in estimates.beside.curve(SIZES[-1])], len(found.scores), rates,
        )  # fmt: skip
