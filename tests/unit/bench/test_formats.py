"""The four formats, as golden files: `python -m tests.unit.bench.golden` writes them anew."""

from __future__ import annotations

import csv
import json

import pytest

from duo.bench.formats import COLUMNS, markdown_table, progress, table
from tests.unit.bench.golden import FORMATS, GOLDEN
from tests.unit.bench.samples import results


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_unchanged(name: str) -> None:
    assert FORMATS[name] == (GOLDEN / f"results.{name}").read_text(encoding="utf-8")


def test_the_formats_can_be_parsed() -> None:
    document = json.loads(FORMATS["json"])
    assert list(document)[-3:] == ["hardware", "models", "options"]
    assert len(document["runs"]) == 9
    _, fence, facts = FORMATS["md"].partition("```json\n")
    assert fence
    assert json.loads(facts.removesuffix("```\n"))["models"] == document["models"]
    *rows, last = [json.loads(line) for line in FORMATS["jsonl"].splitlines()]
    assert (len(rows), last["hardware"]) == (3 + 9, document["hardware"])
    peer = next(row for row in csv.DictReader(FORMATS["csv"].splitlines()) if row["mode"] == "llama-completion")
    assert [peer[name] for name in ("accept_rate", "draft", "first_token_s", "same_text")] == ["", "", "", "yes"]


def test_a_table_escapes_what_markdown_would_take_for_a_column() -> None:
    assert markdown_table([["a", "k"], ["x|y", ""]]) == ["| a    |   k |", "| ---- | --: |", "| x\\|y |     |"]


def test_some_columns_of_some_rows() -> None:
    lines = table(results().rows()[1:2], {name: COLUMNS[name] for name in ("mode", "accept %", "hidden %")})
    assert lines[2:] == ["| async |       75 |       90 |"]


def test_a_line_of_progress_compares_with_plain_decoding() -> None:
    found = results()
    assert progress(found.samples[0], found, 3).split() == ["1/3", "chat", "plain", "100.0", "t/s"]
    assert progress(found.samples[1], found, 3).split()[2:] == [
        "async",
        "k=auto",
        "120.0",
        "t/s",
        "1.20",
        "of",
        "plain",
    ]
