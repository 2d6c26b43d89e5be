"""llama.cpp's flags, each in each spelling: taken, left out with a note, or refused with what to use instead."""

from __future__ import annotations

import re
import subprocess

import pytest

from duo.cli.llama_flags import ACCEPTED, ALIASES, NO_EFFECT, NOT_HERE, SWITCH, LlamaFlag, flags, parts
from tests.command import ROOT, assert_refused
from tests.unit.cli.runner import duo, parse
from tests.unit.cli.test_arguments import names, read

PROGRAMS = ROOT / "build" / "peers" / "bin"
REFUSED = sorted(name for name, flag in flags().items() if flag.instead)
WITHOUT_EFFECT = sorted(set(flags()) - set(REFUSED))
# The conversation: `duo` has it, and the other commands do not need it.
OWN = {name for name in flags() if name in names("")}


def values(flag: LlamaFlag) -> list[str]:
    return ["-1"] * flag.n_values if flag.optional else ["-x"] * flag.n_values


def test_the_table_has_the_flags_that_people_use_most() -> None:
    assert len(list(parts(ACCEPTED))) > 60
    assert len(WITHOUT_EFFECT) > 60
    assert len(REFUSED) > 60
    written = [name for text in (NO_EFFECT, *NOT_HERE.values()) for part in parts(text) for name in part.split()]
    written = [name for name in written if re.fullmatch(r"--?[A-Za-z].*", name)]
    assert len(written) == len(set(written)) == len(flags()), "no flag is written twice"


@pytest.mark.parametrize("flag", list(parts(ACCEPTED)))
def test_a_flag_that_duo_has(flag: str) -> None:
    *spellings, last = flag.split()
    command = "lead" if last in ("--host", "--port", "--api-key", "--api-key-file", "--alias") else ""
    own = names(command)
    assert {own[name].name for name in spellings} <= {own[last].name}


@pytest.mark.parametrize(("alias", "own"), list(ALIASES.items()))
def test_another_spelling_of_an_option(alias: str, own: str) -> None:
    command = "" if own in names("") else "lead"
    value = [] if names(command)[own].is_flag else ["x"]
    assert read(command, alias, *value, "-n", "7") == [own, *value, "-n", "7"]


@pytest.mark.parametrize("name", sorted(set(WITHOUT_EFFECT) - OWN))
def test_a_flag_without_effect_is_left_out_with_its_value(name: str) -> None:
    run = duo("-p", "x", name, *values(flags()[name]), "-m", "missing.gguf")
    assert run.stderr.splitlines() == [
        f"duo: without effect here: {name}",
        "duo: error: missing.gguf: no such file",
    ]


@pytest.mark.parametrize("name", sorted(set(REFUSED) - OWN))
def test_a_flag_that_is_refused(name: str) -> None:
    flag = flags()[name]
    assert_refused(duo("-m", "missing.gguf", "-p", "x", name, *values(flag)), f"{name}: {flag.instead}", status=2)


@pytest.mark.parametrize("name", [name for name in REFUSED if flags()[name].harmless and name not in OWN])
def test_a_flag_that_asks_for_what_duo_does_anyway(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in flags()[name].harmless:
        assert read("", name, value, "-n", "7") == ["-n", "7"]
        assert capsys.readouterr().err == f"duo: without effect here: {name}\n"


@pytest.mark.parametrize("command", ["bench", "chat", "check", "lead", "tune"])
def test_other_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = names(command)
    for name in sorted(set(WITHOUT_EFFECT) - set(own)):
        assert read(command, name, *values(flags()[name]), "-v") == ["-v"], name
        assert capsys.readouterr().err == f"duo: without effect here: {name}\n"


def test_one_note_names_all_flags_without_effect() -> None:
    typed = "--jinja -lv 1 --log-disable --log-colors -kvo --log-colors on --jinja"
    run = duo("-m", "missing.gguf", "-p", "x", *typed.split())
    assert run.stderr.splitlines()[0] == "duo: without effect here: --jinja, -lv, --log-disable, --log-colors, -kvo"


def test_a_missing_value_is_said() -> None:
    assert_refused(duo("-m", "x", "-p", "x", "-lv"), "-lv requires an argument", status=2)
    assert_refused(duo("-m", "x", "-p", "x", "--lora"), "--lora requires an argument", status=2)


def test_a_single_turn_is_one_answer_in_the_chat_template() -> None:
    assert parse("-st", "-cnv", "-p", "x").single_turn
    assert_refused(duo("chat", "-st"), "-st: for one answer to a prompt: duo --chat -p TEXT", status=2)


def test_a_conversation_is_one_command() -> None:
    for command, flag in (("bench", "-i"), ("tune", "--interactive"), ("lead", "--conversation")):
        assert_refused(duo(command, flag), f"{flag}: to chat: duo chat -m FILE", status=2)
    assert read("chat", "-cnv", "-i") == []
    assert read("bench", "-no-cnv") == []
    assert_refused(duo("chat", "-no-cnv"), "-no-cnv: for one answer to a prompt: duo --chat -p TEXT", status=2)


def test_all_that_are_refused_are_said_at_once() -> None:
    run = duo("-m", "x", "--lora", "a", "--slots", "-p", "x", "--lora-scaled", "b", "--mirostat", "2")
    reason = flags()["--lora"].instead
    assert_refused(run, f"error: --lora, --lora-scaled: {reason}; --slots: ", "/metrics", "; --mirostat: ", status=2)


def test_flags_of_other_releases_and_those_that_ask_for_something_else() -> None:
    assert_refused(duo("lead", "--prefill-assistant"), "/v1/completions to continue a text", status=2)
    assert read("", "--direct-io", "-cd", "512", "--draft-min", "3", "--spec-draft-p-min", "0.5") == []
    assert read("lead", "--no-prefill-assistant") == []


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


def test_a_switch_is_written_as_one_word() -> None:
    assert " " not in SWITCH
