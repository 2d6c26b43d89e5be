"""Grammars of a command: the text obeys, with a draft too, and an invalid one is one line; run in this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import ONE_EACH, assert_refused
from tests.unit.cli.runner import duo

PROMPT = ("-p", "Once upon a time", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)
DATE = 'root ::= [0-9] [0-9] "." [0-9] [0-9] "." [0-9] [0-9] [0-9] [0-9]'


@pytest.mark.parametrize("temperature", ["0", "1.3"])
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_a_grammar_is_obeyed_to_its_end(kin: dict[str, Path], temperature: str, verify: str) -> None:
    arguments = ("-m", kin["lfm2"], *PROMPT, "--temp", temperature, "-s", "4", "--grammar", DATE)
    alone = duo(*arguments)
    run = duo(*arguments, "-md", kin["llama"], "--verify", verify, "--schedule", "sync", "--draft", "6")
    assert (run.stopped, alone.stopped) == ("the grammar allows nothing more",) * 2
    assert re.fullmatch(r"\d\d\.\d\d\.\d{4}", run.text)
    if verify == "coupled" or temperature == "0":
        assert run.text == alone.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--grammar", "root := nonsense"), "the grammar is invalid: "),
        (("--grammar", " "), "the grammar is invalid: it is empty"),
        (("-j", '{"type": "string", "minLength": 9999999999}'), "-j needs too much memory as a grammar"),
        (("-j", '{"$ref": "https://192.0.2.1/"}'), "-j is an invalid or unsupported JSON schema: Fetching remote"),
    ],
)
def test_an_invalid_grammar(tiny: Path, arguments: tuple[str, ...], said: str) -> None:
    assert_refused(duo("-m", tiny, "-p", "the", "-n", "1", *arguments), said, status=2)
