"""The four formats, as golden files: `python -m tests.unit.bench.golden` writes them anew."""

from __future__ import annotations

import csv
import json

import pytest

from duo.bench.formats import markdown_table
from tests.unit.bench.golden import FORMATS, GOLDEN


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_as_it_was(name: str) -> None:
    assert FORMATS[name] == (GOLDEN / f"results.{name}").read_text(encoding="utf-8")


def test_json_ends_with_the_facts() -> None:
    document = json.loads(FORMATS["json"])
    assert list(document)[-3:] == ["hardware", "models", "options"]
    assert document["models"]["target"]["sha256"] == {"large.gguf": "a1"}
    assert len(document["runs"]) == 9


def test_markdown_ends_with_the_facts_as_json() -> None:
    _, fence, rest = FORMATS["md"].partition("```json\n")
    assert fence
    assert json.loads(rest.removesuffix("```\n"))["models"]["draft"]["sha256"] == {"small.gguf": "b2"}


def test_each_line_of_json_lines_is_json() -> None:
    *rows, facts = [json.loads(line) for line in FORMATS["jsonl"].splitlines()]
    assert len(rows) == 3 + 9
    assert facts["hardware"]["usable_cores"] == 2


def test_csv_leaves_blank_what_is_not_said() -> None:
    rows = list(csv.DictReader(FORMATS["csv"].splitlines()))
    peer = next(row for row in rows if row["mode"] == "llama-completion")
    assert (peer["accept_rate"], peer["draft"], peer["first_token_s"]) == ("", "", "")
    assert peer["same_text"] == "yes"


def test_a_table_is_markdown_whatever_is_in_it() -> None:
    assert markdown_table([["a", "k"], ["x|y", ""]]) == ["| a    |   k |", "| ---- | --: |", "| x\\|y |     |"]
