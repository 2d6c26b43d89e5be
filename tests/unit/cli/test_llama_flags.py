"""llama.cpp's flags, each in each spelling: taken, left out with a note, or refused with what to use instead."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from duo.cli.llama_flags import ALIASES, NO_EFFECT, flags
from duo.errors import UsageError
from tests.command import ROOT
from tests.golden.configuration import CONFIGURATION, FLAGS_START
from tests.unit.cli.runner import parse
from tests.unit.cli.test_arguments import NAMES, read

PROGRAMS = ROOT / "build" / "peers" / "bin"
ACCEPTED = re.findall(
    r"`[^,]*", CONFIGURATION.read_text(encoding="utf-8").partition("Accepted (")[2].partition(FLAGS_START)[0]
)[1:]
OWN: dict[str, Any] = NAMES["lead"] | NAMES[""]


def test_flags_that_duo_has() -> None:
    assert sum(len(flag.names) for flag in {*flags().values()}) == len(flags()) > 200, "each is written once"
    assert len(ACCEPTED) > 60
    for flag in ACCEPTED:
        assert len({OWN[name].name for name in re.findall("`(.+?)`", flag)}) == 1, flag
    for alias, name in ALIASES.items():
        value = [] if OWN[name].is_flag else ["x"]
        command = "" if name in NAMES[""] else "lead"
        assert read(command, alias, *value, "-n", "7") == [name, *value, "-n", "7"]


@pytest.mark.parametrize("command", ["", "bench", "chat", "check", "lead", "tune"])
def test_flags_that_duo_does_not_have(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in sorted(set(flags()) - set(NAMES[command])):
        flag = flags()[name]
        values = (["-1"] if flag.optional else ["-x"]) * flag.n_values
        said = ""
        try:
            assert read(command, name, *values, "-v") == ["-v"], name
        except UsageError as error:
            said = str(error)
        left_out = capsys.readouterr().err == f"duo: without effect here: {name}\n"
        assert left_out != (said == f"{name}: {flag.instead}"), name
        assert left_out or flag.instead != NO_EFFECT, name
        for value in flag.harmless if flag.n_values else ():
            assert read(command, name, value, "-v") == ["-v"], name
            assert capsys.readouterr().err == f"duo: without effect here: {name}\n"


def test_a_conversation_is_one_command() -> None:
    assert parse("-st", "-cnv", "-p", "x").single_turn
    assert read("chat", "-cnv", "-i") == read("bench", "-no-cnv") == []


@pytest.mark.parametrize("program", ["llama-cli", "llama-completion", "llama-server"])
def test_the_table_has_every_flag_of(program: str) -> None:
    path = PROGRAMS / program
    if not path.exists():
        pytest.skip("llama.cpp's programs are not built")
    text = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^((?:--?\w[\w.-]*(?:, *)?)+)( \S+)?", text, re.MULTILINE)
    assert len(lines) > 150
    found = {name: bool(value.strip()) for names, value in lines for name in re.findall(r"-[\w.-]+", names)}
    assert {*found} - {*flags(), *ALIASES, *OWN} == set()
    with_value = {name for name in {*found} & {*flags()} if flags()[name].n_values}
    assert with_value ^ {name for name, takes in found.items() if takes and name in flags()} == set()
