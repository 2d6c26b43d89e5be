"""The samples of a benchmark, the rows computed from them, their table, and what results record about the machine."""

import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from duo.bench.rounds import RATE, Contestant, Sample, distinct_share, first_difference
from duo.diagnose.host import read_host
from duo.engine.cores import usable_cores
from duo.engine.model_pair import ModelPair
from duo.llama import library
from duo.llama.build import versions
from duo.llama.devices import list_devices

# Two-sided 95 % quantiles of Student's t distribution with 2 to 10 degrees of freedom; beyond, 1.96 + 2.46 / (n - 0.7)
_STUDENT = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_EXPERTS = ("expert_bytes", "expert_bytes_on_cpu")

Row = dict[str, Any]  # the figures of one contestant, as in the JSON; None: not measured
Columns = dict[str, Callable[[Row], str]]  # heading, and the cell of a row


class Range(NamedTuple):
    """A figure and its range; None where there are too few runs for one."""

    middle: float
    low: float | None = None
    high: float | None = None


def middle_and_quartiles(values: Sequence[float]) -> Range | None:
    """The median, with quartiles for more than one value; None without values."""
    if not values:
        return None
    low, middle, high = (float(quartile) for quartile in np.percentile(values, (25, 50, 75)))
    return Range(middle, low, high) if len(values) > 1 else Range(middle)


def speed_up(ratios: Sequence[float]) -> Range | None:
    """The geometric mean of ratios of runs of a round, from three on with Student's 95 % interval; None without any."""
    if not ratios:
        return None
    logs, freedom = np.log(ratios), len(ratios) - 1
    middle = math.exp(logs.mean())
    if freedom < 2:
        return Range(middle)
    quantile = _STUDENT[freedom - 2] if freedom <= 10 else 1.96 + 2.46 / (freedom - 0.7)
    reach = quantile * logs.std(ddof=1) / math.sqrt(len(logs))
    return Range(middle, middle * math.exp(-reach), middle * math.exp(reach))


class Results:
    """The samples of all rounds, in the order of measurement."""

    def __init__(self, contestants: Sequence[Contestant], baseline: Contestant | None = None) -> None:
        """Speed-ups and texts are relative to `baseline`, by default plain decoding."""
        self.contestants = list(contestants)
        self.samples: list[Sample] = []
        self.baseline = baseline or next((c for c in contestants if c.mode in ("plain", "off")), None)

    def looping(self) -> set[int]:
        """The rounds in which the text of the baseline (or else of the first contestant) loops."""
        reference = self.baseline or self.contestants[0]
        return {sample.i_round for sample in self.samples if sample.contestant is reference and sample.loops}

    def of(self, contestant: Contestant) -> list[Sample]:
        """All its samples."""
        return [sample for sample in self.samples if sample.contestant is contestant]

    def counting(self, contestant: Contestant) -> list[Sample]:
        """Its samples whose text does not loop, in rounds that do not loop."""
        looping = self.looping()
        return [sample for sample in self.of(contestant) if sample.i_round not in looping and not sample.loops]

    def speed_up(self, contestant: Contestant, over: Contestant, figure: str = RATE) -> Range | None:
        """The ratio of its `figure` to that of `over`, over the rounds in which both count."""
        others = {sample.i_round: sample.run.figure(figure) for sample in self.counting(over)}
        pairs = ((sample.run.figure(figure), others.get(sample.i_round)) for sample in self.counting(contestant))
        return speed_up([first / second for first, second in pairs if first and second])

    def row(self, contestant: Contestant) -> Row:
        """Its figures. Looping samples and rounds are excluded, except from the comparison of texts."""
        samples, runs = self.of(contestant), [sample.run for sample in self.counting(contestant)]
        rate, over = middle_and_quartiles([run.tokens_per_s for run in runs]), self.baseline
        gain = None if over is None or over is contestant else self.speed_up(contestant, over)
        verified, accepted = (sum(run.figures.get(name) or 0 for run in runs) for name in ("verified", "accepted"))
        pairs = [(each, other.run.text) for each in samples if (other := self.baseline_sample(each)) and other.run.text]
        places = [(each.prompt.category, first_difference(each.run.text, text)) for each, text in pairs]
        where, place = next((found for found in places if found[1] is not None), (None, None))
        row = {
            "mode": contestant.mode, "devices": contestant.devices, "threads": contestant.threads,
            "k": contestant.n_max, "runs": len(runs), "looping_runs": len(samples) - len(runs),
            **dict(zip(_RATES, rate or _UNKNOWN, strict=True)), "ms_per_token": rate and 1000 / rate.middle,
            **dict(zip(_GAINS, gain or _UNKNOWN, strict=True)),
            "accept_rate": accepted / verified if verified else None,
        }  # fmt: skip
        for name in dict.fromkeys(name for run in runs for name in run.figures):
            known = [value for run in runs if (value := run.figures.get(name)) is not None]
            row[name] = median(known) if known else None
        return row | {"same_text": place is None if pairs else None, "differs_in": where, "differs_at": place}

    def baseline_sample(self, sample: Sample) -> Sample | None:
        """The baseline's in the same round; None for itself, or if there is none."""
        if sample.contestant is self.baseline:
            return None
        return next((s for s in self.samples if s.contestant is self.baseline and s.i_round == sample.i_round), None)

    def document(self) -> dict[str, Any]:
        """All rows and all runs, as JSON types."""
        return {"rows": [self.row(each) for each in self.contestants], "runs": [_as_json(s) for s in self.samples]}


_RATES = ("tokens_per_s", "tokens_per_s_lower_quartile", "tokens_per_s_upper_quartile")
_GAINS = ("speed_up", "speed_up_low", "speed_up_high")
_UNKNOWN = (None, None, None)


def _as_json(sample: Sample) -> dict[str, Any]:
    run, contestant = sample.run, sample.contestant
    return {
        "round": sample.i_round + 1, "category": sample.prompt.category, "mode": contestant.mode,
        "k": contestant.n_max, "tokens": run.tokens, "tokens_per_s": run.tokens_per_s, **run.figures,
        "distinct_4grams": round(distinct_share(run.text, sample.prompt.text), 3), "loops": sample.loops,
        "text": run.text,
    }  # fmt: skip


def number(name: str, digits: int, factor: float = 1) -> Callable[[Row], str]:
    """A cell with one figure, empty for None."""
    return lambda row: "" if row.get(name) is None else f"{factor * row[name]:.{digits}f}"


def spread(found: Range | None, digits: int) -> str:
    """A figure and its range, if any."""
    if found is None or found.middle is None:
        return ""
    middle = f"{found.middle:.{digits}f}"
    return middle if found.low is None else f"{middle} ({found.low:.{digits}f}–{found.high:.{digits}f})"


def _same(row: Row) -> str:
    if row["differs_at"] is not None:
        return f"{row['differs_in']}, from character {row['differs_at']}"
    return "" if row["same_text"] is None else "yes"


COLUMNS: Columns = {
    **{name: lambda row, name=name: str(row[name] or "") for name in ("mode", "devices", "threads", "k")},  # type: ignore[misc]
    "runs": number("runs", 0),
    "prompt t/s": number("prompt_tokens_per_s", 0),
    "decode t/s": lambda row: spread(Range(*(row[name] for name in _RATES)), 1),
    "ms/token": number("ms_per_token", 2),
    "speed-up": lambda row: spread(Range(*(row[name] for name in _GAINS)), 2),
    "accept %": number("accept_rate", 0, 100),
    "tokens/decode": number("tokens_per_decode", 2),
    "target ms": number("target_ms_per_decode", 2),
    "draft ms": number("draft_ms_per_token", 2),
    "hidden %": number("hidden", 0, 100),
    "waste %": number("waste", 0, 100),
    "first token s": number("first_token_s", 3),
    "text as plain": _same,
}


def table(rows: Iterable[Row], columns: Columns = COLUMNS) -> list[str]:
    """The rows as a Markdown table."""
    return markdown_table([list(columns), *([cell(row) for cell in columns.values()] for row in rows)])


def markdown_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """An aligned Markdown table; all columns except the first are right-aligned."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [[cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])] for cells in lines]
    return [f"| {' | '.join(cells)} |" for cells in (padded[0], rule, *padded[1:])]


def progress(sample: Sample, results: Results, n_rounds: int) -> str:
    """A progress line for a new sample."""
    width = max(len(contestant.name) for contestant in results.contestants)
    rate, other = sample.run.tokens_per_s, results.baseline_sample(sample)
    gain = "" if other is None else f"{rate / other.run.tokens_per_s:8.2f} of {other.contestant.name}"
    head = f"{sample.i_round + 1}/{n_rounds} {sample.prompt.category:<12} {sample.contestant.name:<{width}}"
    return f"{head} {rate:8.1f} t/s{gain}"


def excluded(results: Results) -> list[str]:
    """The texts that are not counted because they loop; if the baseline's does, the whole round."""
    looping = results.looping()
    found = [s for s in results.samples if s.loops and (s.i_round not in looping or s.contestant is results.baseline)]
    names = ", ".join(f"{s.prompt.category} (round {s.i_round + 1}, {s.contestant.name})" for s in found)
    return ["", f"Excluded because the text loops: {names}."] if names else []


# What results record: hardware, versions, devices, models and options


def circumstances() -> dict[str, object]:
    """Date, versions, hardware and devices; memory in bytes."""
    host = read_host()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions() | {"python": platform.python_version(), "system": platform.platform()},
        "hardware": {"cpu": host.cpu, "cores": os.cpu_count(), "usable_cores": usable_cores(),
                     "memory_bytes": host.memory_total},
        "devices": _devices(),
        "llama_cpp": library.system_info(),
    }  # fmt: skip


def run_facts(slot: ModelPair, options: object) -> dict[str, object]:
    """Where, and with what `options`, a text was generated."""
    return {
        "versions": versions(), "system": library.system_info(), "devices": _devices(), "models": model_facts(slot),
        "threads": slot.threads, "context": slot.n_ctx, "options": options,
    }  # fmt: skip


def _devices() -> list[dict[str, object]]:
    return [
        {"name": each.name, "description": each.description, "kind": each.kind,
         **dict(zip(("memory_free", "memory_total"), each.memory, strict=True))}
        for each in list_devices()
    ]  # fmt: skip


def model_facts(slot: ModelPair) -> dict[str, dict[str, object] | None]:
    """The target and the draft: sizes in bytes, and what is in the files."""
    return {
        role: None if model is None else {
            "path": model.path, "name": model.path.name, "description": model.description, "bytes": model.n_bytes,
            "params": model.n_params, "layers": model.n_layer, "quantisation": model.quantisation,
            "vocabulary": model.n_vocab, "trained_context": model.n_ctx_train,
            **dict(zip(_EXPERTS, model.size.expert_bytes(model.n_offloaded), strict=True)),
        }
        for role, model in (("target", slot.target), ("draft", slot.draft_model))
    }  # fmt: skip


def merged(*parts: object) -> dict[str, object]:
    """Dataclasses and dicts (None: nothing) as one JSON object."""
    found: dict[str, object] = {}
    for part in filter(None, parts):
        found |= msgspec.to_builtins(part, enc_hook=str, str_keys=True, order="deterministic")
    return found


def write_json(path: Path, *parts: object) -> None:
    """Write merged() to a file; `-` is standard output. Raises OSError."""
    text = json.dumps(merged(*parts), indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
