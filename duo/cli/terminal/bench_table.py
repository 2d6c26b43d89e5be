"""The table of `duo bench`, and the line for each text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from duo.bench.results import Range, Results, Row
from duo.bench.rounds import Sample

Columns = dict[str, Callable[[Row], str]]  # heading, and the cell of a row


def number(name: str, digits: int, factor: float = 1) -> Callable[[Row], str]:
    """A cell with one figure, empty for None."""
    return lambda row: "" if row.get(name) is None else f"{factor * row[name]:.{digits}f}"


def spread(found: Range | None, digits: int) -> str:
    """A figure and its range, if any."""
    if found is None:
        return ""
    middle = f"{found.middle:.{digits}f}"
    return middle if found.low is None else f"{middle} ({found.low:.{digits}f}–{found.high:.{digits}f})"


def _spread(name: str, low: str, high: str, digits: int) -> Callable[[Row], str]:
    return lambda row: "" if row[name] is None else spread(Range(row[name], row[low], row[high]), digits)


def _same(row: Row) -> str:
    if row["differs_at"] is not None:
        return f"{row['differs_in']}, from character {row['differs_at']}"
    return "" if row["same_text"] is None else "yes"


COLUMNS: Columns = {
    **{name: lambda row, name=name: str(row[name] or "") for name in ("mode", "devices", "threads", "k")},  # type: ignore[misc]
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
