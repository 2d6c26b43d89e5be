"""llama.cpp's flags, each in each spelling: taken, left out with a note, or refused with what to use instead."""

from __future__ import annotations

import re
import subprocess

import pytest

from duo.cli.llama_flags import ACCEPTED, ALIASES, NO_EFFECT, NOT_HERE, flags, parts
from duo.errors import UsageError
from tests.command import ROOT, assert_refused
from tests.unit.cli.runner import duo, parse
from tests.unit.cli.test_arguments import names, read

PROGRAMS = ROOT / "build" / "peers" / "bin"


def values(name: str) -> list[str]:
    flag = flags()[name]
    return ["-1"] * flag.n_values if flag.optional else ["-x"] * flag.n_values


def test_the_flags_that_people_use_most_are_each_written_once() -> None:
    written = [name for text in (NO_EFFECT, *NOT_HERE.values()) for part in parts(text) for name in part.split()]
    written = [name for name in written if re.fullmatch(r"--?[A-Za-z].*", name)]
    assert len(written) == len(set(written)) == len(flags()) > 200
    assert len(list(parts(ACCEPTED))) > 60


def test_flags_that_duo_has() -> None:
    own = names("lead") | names("")
    for flag in parts(ACCEPTED):
        assert len({own[name].name for name in flag.split()}) == 1, flag
    for alias, name in ALIASES.items():
        command = "" if name in names("") else "lead"
        value = [] if own[name].is_flag else ["x"]
        assert read(command, alias, *value, "-n", "7") == [name, *value, "-n", "7"]


@pytest.mark.parametrize("command", ["", "bench", "chat", "check", "lead", "tune"])
def test_flags_that_duo_does_not_have(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in sorted(set(flags()) - set(names(command))):
        reason = flags()[name].instead
        said = ""
        try:
            assert read(command, name, *values(name), "-v") == ["-v"], name
        except UsageError as error:
            said = str(error)
        left_out = capsys.readouterr().err == f"duo: without effect here: {name}\n"
        assert left_out != (said == f"{name}: {reason}"), name
        assert left_out or reason, name
        for value in flags()[name].harmless:
            assert read(command, name, value, "-v") == ["-v"], name
            assert capsys.readouterr().err == f"duo: without effect here: {name}\n"


def test_one_line_says_all() -> None:
    typed = "--jinja -lv 1 --log-disable --log-colors -kvo --log-colors on --jinja"
    run = duo("-m", "missing.gguf", "-p", "x", *typed.split())
    assert run.stderr.splitlines()[0] == "duo: without effect here: --jinja, -lv, --log-disable, --log-colors, -kvo"
    run = duo("-m", "x", "--lora", "a", "--slots", "-p", "x", "--lora-scaled", "b", "--mirostat", "2")
    reason = flags()["--lora"].instead
    assert_refused(run, f"error: --lora, --lora-scaled: {reason}; --slots: ", "/metrics", "; --mirostat: ", status=2)
    assert_refused(duo("-m", "x", "-p", "x", "-lv"), "-lv requires an argument", status=2)
    assert read("", "--direct-io", "-cd", "512", "--draft-min", "3", "--spec-draft-p-min", "0.5") == []


def test_a_conversation_is_one_command() -> None:
    assert parse("-st", "-cnv", "-p", "x").single_turn
    assert read("chat", "-cnv", "-i") == read("bench", "-no-cnv") == []
    for command, flag in (("bench", "-i"), ("lead", "--conversation")):
        assert_refused(duo(command, flag), f"{flag}: to chat: duo chat -m FILE", status=2)
    for flag in ("-st", "-no-cnv"):
        assert_refused(duo("chat", flag), f"{flag}: for one answer to a prompt: duo --chat -p TEXT", status=2)


@pytest.mark.parametrize("program", ["llama-cli", "llama-completion", "llama-server"])
def test_the_table_has_every_flag_of(program: str) -> None:
    path = PROGRAMS / program
    if not path.exists():
        pytest.skip("llama.cpp's programs are not built")
    text = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^((?:--?\w[\w.-]*(?:, *)?)+)( \S+)?", text, re.MULTILINE)
    assert len(lines) > 150
    found = {name: bool(value.strip()) for names, value in lines for name in re.findall(r"-[\w.-]+", names)}
    assert {*found} - {*flags(), *ALIASES, *ACCEPTED.split()} == set()
    with_value = {name for name in {*found} & {*flags()} if flags()[name].n_values}
    assert with_value ^ {name for name, takes in found.items() if takes and name in flags()} == set()
