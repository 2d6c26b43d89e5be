"""`duo bench`: benchmarks plain decoding, duo's modes and llama.cpp's programs."""

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from duo.bench import contestants, results
from duo.bench.results import circumstances, merged, model_facts, write_json
from duo.bench.rounds import Job, Prompt, Sample, built_in, chosen, measure, parse_prompts, rounds
from duo.cli.commands.options import BenchOptions
from duo.cli.installation import SLOWING
from duo.cli.load import loaded
from duo.cli.options import read_file
from duo.cli.terminal.console import blame, check_writable, note, progress_bar, say, send_log, warn
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import AUTO_DRAFT
from duo.engine.cores import cpu_times, is_busy, other_cpu_use, usable_cores
from duo.engine.engine import Engine
from duo.errors import PromptError, UsageError
from duo.llama.model import Model

_NUMBER = re.compile(r"0{,40}[1-9]\d{,40}")  # Python refuses to convert thousands of digits
_ROOM = 32  # extra context tokens that the programs may need


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured."""

    modes: Sequence[str]
    limits: dict[str, int | None]  # maximum candidates per batch, by name; None is auto
    prompts: list[Prompt]
    programs: dict[str, Path]

    @property
    def largest(self) -> int | None:
        """The largest limit, which the contexts must have room for; None if all are auto."""
        limits = list(self.limits.values())
        return max(AUTO_DRAFT if n is None else n for n in limits) if any(limits) else None


def bench(options: BenchOptions) -> int:
    """Run the benchmark and print the results. Returns the exit status. Raises DuoError."""
    send_log(options, hidden=("duo.remote", "duo.process"))
    check_writable(options.json, "--json")
    plan = read_plan(options)
    load_before, since = round(os.getloadavg()[0], 2), cpu_times()
    options = replace(options, engine=replace(options.engine, draft_n_max=plan.largest))
    versions = {name: {"path": path, "version": contestants.version(path)} for name, path in plan.programs.items()}
    with loaded(options, options.predict) as engine:
        slot = engine.slot
        prompts = [replace(prompt, text=_text(prompt, slot.target, raw=options.raw)) for prompt in plan.prompts]
        taken = rounds(prompts, options.repetitions)
        _reserve(engine, taken, options.predict)
        limits = {name: replace(slot.config, draft_n_max=n).drafting() for name, n in plan.limits.items()}
        found = results.Results(
            contestants.own_modes(engine, plan.modes, limits)
            + contestants.other_programs(plan.programs, list(plan.limits.values()), engine)
        )
        if missing := plan.programs.keys() - {each.mode for each in found.contestants}:
            warn(f"{', '.join(missing)} needs a draft with the target's vocabulary: skipped")
        about = circumstances() | {"load_before": load_before, "peers": versions, "models": model_facts(slot)}
        about["options"] = merged(options) | {"draft": options.limits}
        _caution(other_cpu_use(since))
        draft = None if slot.draft_model is None else slot.draft_model.path
        job = Job(slot.target.path, draft, "", Path(), options.predict, slot.n_ctx)
        status = 1
        try:
            status = _measure(found, taken, job, engine)
            return status
        finally:  # also after an error
            if found.samples:
                about = merged(about, {"complete": not status})
                files = dict.fromkeys([Path("-")] * (options.output == "json") + [options.json] * bool(options.json))
                for file in filter(None, files):
                    with blame("--json", file):
                        write_json(file, found.document(), about)
                if Path("-") not in files:
                    print("\n".join(_markdown(found, about)))  # noqa: T201
                    _draw(found)


def read_plan(options: BenchOptions) -> Setup:
    """Parse and check the list options, before any model is loaded. Raises UsageError or PromptError."""
    modes = _split(options.modes or ("plain,sync,async,auto" if options.has_draft else "plain,lookup"), "--modes")
    if unknown := [mode for mode in modes if mode not in contestants.MODES]:
        raise UsageError(f"--modes: unknown mode {unknown[0]!r} (available: {', '.join(contestants.MODES)})")
    if not options.has_draft and (drafting := [mode for mode in modes if mode not in (*contestants.ALONE, "auto")]):
        raise UsageError(f"--modes {drafting[0]} needs a draft: name one with -md or -hfd")
    prompts = parse_prompts(read_file(options.prompts, escape=False)[1]) if options.prompts is not None else built_in()
    if options.categories is not None:
        prompts = chosen(prompts, _split(options.categories, "--categories"))
    limits: dict[str, int | None] = {}
    for name in _split(options.limits, "--draft"):
        if name != "auto" and not _NUMBER.fullmatch(name):
            raise UsageError(f"--draft: {name!r} is neither a number of at least 1 nor auto")
        limits[name] = None if name == "auto" else int(name)
    return Setup(modes, limits, prompts, _programs(options.peers))


def _programs(text: str | None) -> dict[str, Path]:
    """Those that --peers names; by default those on the PATH."""
    if text is None:
        return {name: Path(path) for name in contestants.PROGRAMS if (path := shutil.which(name)) is not None}
    found: dict[str, Path] = {}
    for item in _split(text, "--peers") if text != "none" else ():
        name, _, path = item.partition("=")
        if name not in contestants.PROGRAMS or name in found or not Path(path).expanduser().is_file():
            names = ", ".join(contestants.PROGRAMS)
            raise UsageError(f"--peers: {item!r} is not of the form NAME=FILE, with each of {names} once at most")
        found[name] = Path(path).expanduser().absolute()
    return found


def _split(text: str, option: str) -> Sequence[str]:
    """The distinct items of a list."""
    items = list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
    if not items:
        raise UsageError(f"{option}: the list is empty")
    return items


def _text(prompt: Prompt, target: Model, *, raw: bool) -> str:
    """The prompt in the model's chat template, if any, without the BOS token, which all programs add."""
    if raw or not target.header.text("tokenizer.chat_template"):
        return prompt.text
    text = target.apply_chat_template([{"role": "user", "content": prompt.text}])
    bos = target.spelling([target.bos]).decode("utf-8", "replace") if target.adds_bos else ""
    return text.removeprefix(bos)


def _reserve(engine: Engine, prompts: Sequence[Prompt], n_predict: int) -> None:
    """Create contexts that hold the longest text."""
    longest = max(len(engine.tokenize(prompt.text)) for prompt in prompts)
    with progress_bar():
        engine.call(lambda slot: slot.reserve(longest, n_predict + _ROOM))
    n_ctx = engine.slot.n_ctx
    if longest + n_predict > n_ctx:
        raise PromptError(f"{longest} prompt tokens and {n_predict} more exceed the context of {n_ctx}: reduce -n")


def _caution(n_others: float) -> None:
    """Warn about what distorts the figures: other programs, which use `n_others` cores, and variables."""
    cores = usable_cores()
    if is_busy(n_others, cores):
        note(f"other programs use {n_others:.1f} of {cores} cores: the figures will vary; stop them and try again")
    for name in filter(os.environ.__contains__, SLOWING):
        note(f"{name} is set: it can make decodes of all programs several times slower")


def _measure(found: results.Results, prompts: Sequence[Prompt], job: Job, engine: Engine) -> int:
    """Fill `found`. Returns the exit status."""
    stopped, n_rounds, n_contestants = threading.Event(), len(prompts), len(found.contestants)
    note(f"rounds: {n_rounds}, each of {n_contestants} contestants, {job.n_tokens} tokens per text")
    start = time.monotonic()

    def put(sample: Sample) -> None:
        found.samples.append(sample)
        say(results.progress(sample, found, n_rounds))
        show("writing texts", len(found.samples), n_rounds * n_contestants)
        if len(found.samples) == n_contestants and n_rounds > 1:
            left_s = (time.monotonic() - start) * (n_rounds - 1)
            note(f"about {left_s:.0f} s more, after one of {n_rounds} rounds")

    def stop() -> None:
        stopped.set()
        engine.interrupt()

    with progress_bar("writing texts", shows_time=True) as show, on_interrupt(stop) as interrupt:
        measure(found.contestants, prompts, job, put, note, stopped, warm_up=prompts[-1])
    if interrupt.signal:
        note(f"interrupted after {len(found.samples)} of {n_rounds * n_contestants} texts")
    return interrupt.status


def _markdown(found: results.Results, about: dict[str, Any]) -> list[str]:
    """The table."""
    models = filter(None, map(about["models"].get, ("target", "draft")))
    pair = ", draft ".join(f"{model['name']} ({model['quantisation']})" for model in models)
    categories = dict.fromkeys(sample.prompt.category for sample in found.samples)
    n_rounds = len({sample.i_round for sample in found.samples})
    return [
        f"{pair}; {about['options']['predict']} greedy tokens each, rounds: {n_rounds} ({', '.join(categories)}). "
        "Decode t/s: median (quartiles); speed-up over plain: geometric mean of the rounds (95 % t interval).",
        "", *results.table(map(found.row, found.contestants)), *results.excluded(found),
    ]  # fmt: skip


def _draw(found: results.Results) -> None:
    """Print the rates as bars, in colour on a terminal; indented, so that Markdown leaves them as they are."""
    rows = [(each.name, found.row(each)) for each in found.contestants]
    bars, most = Table.grid(padding=(0, 2)), max(row["tokens_per_s"] or 0.0 for _, row in rows)
    for name, row in rows:
        rate, gain = row["tokens_per_s"] or 0.0, row["speed_up"]
        bar = Bar(most, 0, rate, width=40, color="green" if rate == most else "blue")
        bars.add_row(name, bar, f"{rate:.1f} t/s", gain and f"{gain:.2f} of plain")
    Console(file=sys.stdout, highlight=False).print(Padding(bars, (1, 0, 0, 4)))
