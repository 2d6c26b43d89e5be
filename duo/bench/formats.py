"""A benchmark as Markdown, CSV, JSON or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from duo.bench.results import Results, Row
from duo.bench.rounds import Sample
from duo.bench.statistics import Range
from duo.bench.texts import distinct_share, loops

Facts = dict[str, Any]
_NOTHING = (None, None, None)
_LEAST_WIDTH = 3  # of a column of Markdown: a rule has a dash before its colon


def markdown(results: Results, facts: Facts) -> str:
    """The table over all prompts, one by category, and the facts as JSON."""
    target, draft = facts["models"]["target"], facts["models"]["draft"]
    pair = _model(target) + (f", draft {_model(draft)}" if draft is not None else "")
    categories = ", ".join(dict.fromkeys(sample.prompt.category for sample in results.samples))
    n_rounds = len({sample.i_round for sample in results.samples})
    count = f"{facts['options']['predict']} greedy tokens each, {n_rounds} rounds ({categories})"
    table = [_HEADINGS, *(_cells(row) for row in results.rows())]
    return "\n".join(
        [
            f"{pair}; {count}. Decode t/s: median (quartiles); speed-up over plain: geometric mean of the rounds "
            "(95 % t interval).",
            "",
            *markdown_table(table),
            "",
            *markdown_table(_by_category(results)),
            *_notes(results),
            "",
            "```json",
            json.dumps(facts, indent=2),
            "```",
        ]
    )


def as_csv(results: Results, facts: Facts) -> str:
    """One line for each contestant on all prompts, then one for each on every category. Shares are from 0 to 1."""
    rows = [as_dict(row, facts) for row in (*results.rows(), *results.rows_by_category())]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def as_json(results: Results, facts: Facts) -> str:
    """All rows, every run behind them, and the facts at the end."""
    document = {
        "rows": [as_dict(row, facts) for row in results.rows()],
        "rows_by_category": [as_dict(row, facts) for row in results.rows_by_category()],
        "runs": [run_line(sample) for sample in results.samples],
        **facts,
    }
    return json.dumps(document, indent=2)


def as_json_lines(results: Results, facts: Facts) -> str:
    """The rows and then the facts, one in each line; the runs were written before, as they came."""
    rows = [as_dict(row, facts) for row in (*results.rows(), *results.rows_by_category())]
    return "\n".join([*(json_line("row", row) for row in rows), json_line("facts", facts)])


def json_line(kind: str, content: dict[str, Any]) -> str:
    """One line of JSON lines; `kind` is run, row or facts."""
    return json.dumps({"type": kind, **content})


def as_dict(row: Row, facts: Facts) -> dict[str, Any]:
    """A row with names that say their unit; None where there is nothing to say."""
    target, draft = facts["models"]["target"], facts["models"]["draft"] if row.contestant.drafts else None
    rate, gain = row.tokens_per_s or _NOTHING, row.speed_up or _NOTHING
    return {
        "mode": row.contestant.mode,
        "target": target["name"],
        "target_quantisation": target["quantisation"],
        "draft": draft and draft["name"],
        "draft_quantisation": draft and draft["quantisation"],
        "devices": row.contestant.devices,
        "threads": row.contestant.threads,
        "k": row.contestant.n_max,
        "category": row.category,
        "runs": row.n_runs,
        "looping_runs": row.n_looping,
        "prompt_tokens_per_s": row.prompt_tokens_per_s,
        "tokens_per_s": rate[0],
        "tokens_per_s_lower_quartile": rate[1],
        "tokens_per_s_upper_quartile": rate[2],
        "ms_per_token": row.ms_per_token,
        "speed_up": gain[0],
        "speed_up_low": gain[1],
        "speed_up_high": gain[2],
        "accept_rate": row.accept_rate,
        "tokens_per_decode": row.tokens_per_decode,
        "target_ms_per_decode": row.target_ms,
        "draft_ms_per_token": row.draft_ms,
        "hidden": row.hidden,
        "waste": row.waste,
        "first_token_s": row.first_token_s,
        "same_text": row.same_text,
        "differs_in": row.difference and row.difference.category,
        "differs_at": row.difference and row.difference.character,
    }


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
        "distinct_4grams": round(distinct_share(run.text), 3),
        "loops": loops(run.text),
        "text": run.text,
    }


def _same(row: Row) -> str:
    if row.difference is not None:
        return f"{row.difference.category}, from character {row.difference.character}"
    return "" if row.same_text is None else "yes"


def number(value: float | None, digits: int) -> str:
    """A cell of the table; empty if there is nothing to say."""
    return "" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def spread(found: Range | None, digits: int) -> str:
    """A figure with the range around it, if there is one."""
    if found is None:
        return ""
    middle = number(found.middle, digits)
    return middle if found.low is None else f"{middle} ({number(found.low, digits)}–{number(found.high, digits)})"


# Heading and cell of each column of the Markdown table.
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "mode": lambda row: row.contestant.mode,
    "devices": lambda row: row.contestant.devices,
    "threads": lambda row: row.contestant.threads,
    "k": lambda row: row.contestant.n_max or "",
    "runs": lambda row: str(row.n_runs),
    "prompt t/s": lambda row: number(row.prompt_tokens_per_s, 0),
    "decode t/s": lambda row: spread(row.tokens_per_s, 1),
    "ms/token": lambda row: number(row.ms_per_token, 2),
    "speed-up": lambda row: spread(row.speed_up, 2),
    "accept %": lambda row: _percent(row.accept_rate),
    "tokens/decode": lambda row: number(row.tokens_per_decode, 2),
    "target ms": lambda row: number(row.target_ms, 2),
    "draft ms": lambda row: number(row.draft_ms, 2),
    "hidden %": lambda row: _percent(row.hidden),
    "waste %": lambda row: _percent(row.waste),
    "first token s": lambda row: number(row.first_token_s, 3),
    "text as plain": _same,
}
_HEADINGS = list(_COLUMNS)


def _cells(row: Row) -> list[str]:
    return [cell(row) for cell in _COLUMNS.values()]


def _by_category(results: Results) -> list[list[str]]:
    """Decode rate and speed-up of each contestant in each category."""
    lines = [["decode t/s", *results.categories]]
    for contestant in results.contestants:
        rows = [results.row(contestant, category) for category in results.categories]
        lines.append([contestant.name, *(_rate_and_gain(row) for row in rows)])
    return lines


def _rate_and_gain(row: Row) -> str:
    if row.tokens_per_s is None:
        return "loops" if row.n_looping else ""
    gain = "" if row.speed_up is None else f" (×{row.speed_up.middle:.2f})"
    return f"{row.tokens_per_s.middle:.1f}{gain}"


def _notes(results: Results) -> list[str]:
    looping = results.looping()
    names = dict.fromkeys(
        f"{s.prompt.category} (round {s.i_round + 1}{'' if s.i_round in looping else f', {s.contestant.name} alone'})"
        for s in results.samples
        if s.i_round in looping or loops(s.run.text)
    )
    return ["", f"Left out because the text loops: {', '.join(names)}."] if names else []


def markdown_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Markdown whose columns stand below each other in plain text too; all but the first hold figures."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(_LEAST_WIDTH, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return [f"| {' | '.join(cells)} |" for cells in (padded[0], rule, *padded[1:])]


def _model(model: dict[str, Any]) -> str:
    return f"{model['name']} ({model['quantisation']})"


def _plain(value: Any) -> Any:
    """CSV has no booleans."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
