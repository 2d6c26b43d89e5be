"""What each headline table consists of: which runs of `duo bench`, and which of their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import read_model
from duo.bench.formats import markdown_table, number, spread
from duo.bench.statistics import Range
from duo.llama.devices import gpus

NO_GPU = "llama.cpp has no GPU here"


@dataclass(frozen=True, slots=True)
class Call:
    """One run of `duo bench`."""

    name: str
    modes: tuple[str, ...]
    more: tuple[str, ...] = ()
    peers: bool = False
    blank: str | None = None  # why it cannot be measured here


@dataclass(frozen=True, slots=True)
class Table:
    """The runs, and the columns after the row's name."""

    calls: Callable[[Path], list[Call]]
    columns: dict[str, Callable[[dict[str, Any]], str]]


def _placements(target: Path) -> list[Call]:
    """The target on the CPU, split, or beside a draft on the GPU."""
    blank = None if gpus() else NO_GPU
    half = str(read_model(target).n_layers // 2)
    return [
        Call("CPU only", ("plain", "auto", "remote"), ("-ngl", "0", "-ngld", "0")),
        Call("draft on the GPU", ("plain", "auto"), ("-ngl", "0", "-ngld", "all"), blank=blank),
        Call("split: half of the target's layers and the draft on the GPU", ("plain", "auto"),
             ("-ngl", half, "-ngld", "all"), blank=blank),
    ]  # fmt: skip


def _number(name: str, digits: int, factor: float = 1) -> Callable[[dict[str, Any]], str]:
    return lambda row: number(None if row[name] is None else factor * row[name], digits)


def _spread(name: str, low: str, high: str, digits: int) -> Callable[[dict[str, Any]], str]:
    return lambda row: spread(None if row[name] is None else Range(row[name], row[low], row[high]), digits)


RATE = _spread("tokens_per_s", "tokens_per_s_lower_quartile", "tokens_per_s_upper_quartile", 1)
GAIN = _spread("speed_up", "speed_up_low", "speed_up_high", 2)
ACCEPTED = _number("accept_rate", 0, 100)

TABLES = {
    "placement": Table(
        _placements, {"threads": lambda row: row["threads"], "tokens/s": RATE, "over plain": GAIN, "accept %": ACCEPTED}
    ),
    "schedules": Table(
        lambda _: [Call("", ("plain", "sync", "async"), ("--draft", "2,4,8,auto"))],
        {
            "threads": lambda row: row["threads"],
            "tokens/s": RATE,
            "over plain": GAIN,
            "accept %": ACCEPTED,
            "tokens/decode": _number("tokens_per_decode", 2),
            "hidden %": _number("hidden", 0, 100),
        },
    ),
    "latency": Table(
        lambda _: [Call("", ("plain", "sync", "async", "auto"))],
        {
            "ms/token": _number("ms_per_token", 2),
            "over plain": GAIN,
            "target ms/decode": _number("target_ms_per_decode", 2),
            "draft ms/token": _number("draft_ms_per_token", 2),
            "first token, ms": _number("first_token_s", 0, 1000),
        },
    ),
    "peers": Table(
        lambda _: [Call("", ("plain", "sync", "async", "auto"), peers=True)],
        {
            "threads": lambda row: row["threads"],
            "tokens/s": RATE,
            "over duo plain": GAIN,
            "accept %": ACCEPTED,
            "text as plain": lambda row: {True: "yes", False: "no", None: ""}[row["same_text"]],
        },
    ),
}


def table(chosen: Table, documents: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown; a run that cannot be measured here has blank cells and the reason."""
    lines = [["", *chosen.columns]]
    for document in documents:
        named = f"{document['call']}: " if document["call"] else ""
        if document["blank"]:
            blank = [""] * (len(chosen.columns) - 1)
            lines += [[f"{named}{mode} ({document['blank']})", "", *blank] for mode in document["modes"]]
        for row in document["rows"]:
            name = row["mode"] if row["k"] is None else f"{row['mode']} k={row['k']}"
            lines.append([f"{named}{name}", *(cell(row) for cell in chosen.columns.values())])
    return markdown_table(lines)


def backs_table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Medians over the texts."""
    lines = [["back", "first half t/s", "second half t/s", "whole text t/s", "text as without"]]
    for way, texts in found.items():
        rates = [f"{median(text[part] for text in texts):.1f}" for part in ("first", "second", "whole")]
        n_same = sum(text["differs_at"] is None for text in texts)
        lines.append([way, *rates, f"{n_same} of {len(texts)}"])
    return markdown_table(lines)
