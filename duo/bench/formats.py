"""A benchmark as Markdown, CSV, JSON or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from duo.bench.results import Results, Row
from duo.bench.rounds import Sample
from duo.bench.statistics import Range
from duo.bench.texts import copied_share, distinct_share

Facts = dict[str, Any]
_LEAST_WIDTH = 3  # of a Markdown column


def markdown(results: Results, facts: Facts) -> str:
    """A table over all prompts, one by category, and the facts as JSON."""
    target, draft = facts["models"]["target"], facts["models"]["draft"]
    pair = ", draft ".join(f"{model['name']} ({model['quantisation']})" for model in (target, draft) if model)
    count = (
        f"{facts['options']['predict']} greedy tokens each, {results.n_rounds} rounds ({', '.join(results.categories)})"
    )
    return "\n".join(
        [
            f"{pair}; {count}. Decode t/s: median (quartiles); speed-up over plain: geometric mean of the rounds "
            "(95 % t interval).",
            *(["", emulated(facts["emulated"])] if "emulated" in facts else []),
            "",
            *table(results.rows(), EMULATED_COLUMNS if "emulated" in facts else COLUMNS),
            "",
            *markdown_table(by_category(results)),
            *_notes(results),
            "",
            "```json",
            json.dumps(facts, indent=2),
            "```",
        ]
    )


def emulated(devices: Facts) -> str:
    """What the figures of emulated devices mean."""
    more = [f"measured by: {devices['source']}"] if devices["source"] else []
    more += [f"assumed: {', '.join(devices['assumed'])}"] if devices["assumed"] else []
    return (
        f"Emulated devices: {devices['machine']}, {devices['pair']}{''.join(f'; {each}' for each in more)}. "
        f"They ran {devices['slow_down']:g} times slower than they are; times and rates are converted back. "
        "Prefill is not emulated. engine µs: processor time of Python per decode of the target, not converted."
    )


def as_csv(results: Results, facts: Facts) -> str:
    """One line per contestant over all prompts, then one per contestant and category. Shares are from 0 to 1."""
    rows = _rows(results.rows() + results.rows_by_category(), facts)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def as_json(results: Results, facts: Facts) -> str:
    """document() as text."""
    return json.dumps(document(results, facts), indent=2)


def document(results: Results, facts: Facts) -> dict[str, Any]:
    """All rows, all runs, and the facts."""
    return {
        "rows": _rows(results.rows(), facts),
        "rows_by_category": _rows(results.rows_by_category(), facts),
        "runs": [run_line(sample) for sample in results.samples],
        **facts,
    }


def as_json_lines(results: Results, facts: Facts) -> str:
    """The rows and the facts, one per line; the runs are written during the measurement."""
    rows = _rows(results.rows() + results.rows_by_category(), facts)
    return "\n".join([*(json_line("row", row) for row in rows), json_line("facts", facts)])


def json_line(kind: str, content: dict[str, Any]) -> str:
    """One line of JSON lines; `kind` is run, row or facts."""
    return json.dumps({"type": kind, **content})


def run_line(sample: Sample) -> dict[str, Any]:
    """One run, with its text."""
    run = sample.run
    return {
        "round": sample.i_round + 1,
        "category": sample.prompt.category,
        "mode": sample.contestant.mode,
        "k": sample.contestant.n_max,
        "tokens": run.tokens,
        "tokens_per_s": run.tokens_per_s,
        "prompt_tokens_per_s": run.prompt_tokens_per_s,
        "first_token_s": run.first_token_s,
        "verified": run.n_verified,
        "accepted": run.n_accepted,
        "distinct_4grams": round(distinct_share(run.text, sample.prompt.text), 3),
        "copied_4grams": round(copied_share(run.text, sample.prompt.text), 3),
        "loops": sample.loops,
        "text": run.text,
    }


def progress(sample: Sample, results: Results, n_rounds: int) -> str:
    """A progress line for a new sample."""
    width = max(len(contestant.name) for contestant in results.contestants)
    ratio = results.ratio(sample)
    gain = "" if ratio is None or results.baseline is None else f"{ratio:8.2f} of {results.baseline.name}"
    return (
        f"{sample.i_round + 1}/{n_rounds} {sample.prompt.category:<12} {sample.contestant.name:<{width}} "
        f"{sample.run.tokens_per_s:8.1f} t/s{gain}"
    )


def _rows(rows: Iterable[Row], facts: Facts) -> list[Row]:
    """Add names and quantisations of the models after the mode."""
    found = []
    for row in rows:
        target, draft = facts["models"]["target"], facts["models"]["draft"] if row["k"] is not None else None
        models = {
            "target": target["name"],
            "target_quantisation": target["quantisation"],
            "draft": draft and draft["name"],
            "draft_quantisation": draft and draft["quantisation"],
        }
        line = {"mode": row["mode"], **models, **row}
        if devices := facts.get("emulated"):
            line |= {"emulated": f"{devices['machine']}, {devices['pair']}", "slow_down": devices["slow_down"]}
        else:
            del line["engine_us_per_step"], line["draft_us_per_decode"]
        found.append(line)
    return found


# Columns of the Markdown tables: heading, and function that formats the cell of a row.
Columns = dict[str, Callable[[Row], str]]


def number(name: str, digits: int, factor: float = 1) -> Callable[[Row], str]:
    """A cell with one figure, empty for None."""
    return lambda row: "" if row[name] is None else f"{factor * row[name]:.{digits}f}"


def _spread(name: str, low: str, high: str, digits: int) -> Callable[[Row], str]:
    return lambda row: spread(None if row[name] is None else Range(row[name], row[low], row[high]), digits)


def _same(row: Row) -> str:
    if row["differs_at"] is not None:
        return f"{row['differs_in']}, from character {row['differs_at']}"
    return "" if row["same_text"] is None else "yes"


COLUMNS: Columns = {
    "mode": lambda row: str(row["mode"]),
    "devices": lambda row: str(row["devices"]),
    "threads": lambda row: str(row["threads"]),
    "k": lambda row: row["k"] or "",
    "runs": number("runs", 0),
    "prompt t/s": number("prompt_tokens_per_s", 0),
    "decode t/s": _spread("tokens_per_s", "tokens_per_s_lower_quartile", "tokens_per_s_upper_quartile", 1),
    "ms/token": number("ms_per_token", 2),
    "speed-up": _spread("speed_up", "speed_up_low", "speed_up_high", 2),
    "accept %": number("accept_rate", 0, 100),
    "tokens/decode": number("tokens_per_decode", 2),
    "target ms": number("target_ms_per_decode", 2),
    "draft ms": number("draft_ms_per_token", 2),
    "hidden %": number("hidden", 0, 100),
    "waste %": number("waste", 0, 100),
    "first token s": number("first_token_s", 3),
    "text as plain": _same,
}


_REAL = ("devices", "prompt t/s", "first token s")  # columns that are not about emulated devices
EMULATED_COLUMNS: Columns = {name: cell for name, cell in COLUMNS.items() if name not in _REAL} | {
    "engine µs": number("engine_us_per_step", 0)
}


def table(rows: Iterable[Row], columns: Columns) -> list[str]:
    """The rows as a Markdown table."""
    return markdown_table([list(columns), *([cell(row) for cell in columns.values()] for row in rows)])


def spread(found: Range | None, digits: int) -> str:
    """A figure and its range, if any."""
    if found is None:
        return ""
    middle = f"{found.middle:.{digits}f}"
    return middle if found.low is None else f"{middle} ({found.low:.{digits}f}–{found.high:.{digits}f})"


def by_category(results: Results) -> list[list[str]]:
    """Decode rate and speed-up per contestant and category."""
    lines = [["decode t/s", *results.categories]]
    for contestant in results.contestants:
        rows = [results.row(contestant, category) for category in results.categories]
        lines.append([contestant.name, *(_rate_and_gain(row) for row in rows)])
    return lines


def _rate_and_gain(row: Row) -> str:
    if row["tokens_per_s"] is None:
        return "loops" if row["looping_runs"] else ""
    gain = "" if row["speed_up"] is None else f" (×{row['speed_up']:.2f})"
    return f"{row['tokens_per_s']:.1f}{gain}"


def _notes(results: Results) -> list[str]:
    looping = results.looping()
    names = dict.fromkeys(
        f"{s.prompt.category} (round {s.i_round + 1}{'' if s.i_round in looping else f', {s.contestant.name} only'})"
        for s in results.samples
        if s.i_round in looping or s.loops
    )
    return ["", f"Excluded because the text loops: {', '.join(names)}."] if names else []


def markdown_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """An aligned Markdown table; all columns except the first are right-aligned."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(_LEAST_WIDTH, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [[cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])] for cells in lines]
    return [f"| {' | '.join(cells)} |" for cells in (padded[0], rule, *padded[1:])]


def _plain(value: Any) -> Any:
    """Booleans as yes and no."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
