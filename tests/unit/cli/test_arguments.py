"""Options are matched whole and take the values of llama.cpp; its flags are taken, left out with a note, or refused."""

import re
import string
import subprocess
from itertools import product
from typing import Any

import pytest
import typer

from duo.cli.arguments import ALIASES, NO_EFFECT, ArgumentReader, flags
from duo.config.option import MAX_INT, declared
from duo.errors import UsageError
from tests.command import ROOT
from tests.golden.configuration import CONFIGURATION, FLAGS_START, names_of, whole_command
from tests.unit.cli.runner import parse

WHOLE = whole_command()
COMMANDS: dict[str, Any] = {"": WHOLE, **WHOLE.commands}
NAMES = {name: names_of(command) for name, command in COMMANDS.items()}


def read(command: str, *arguments: str) -> list[str]:
    """What Typer's parser gets."""
    root = typer.Context(WHOLE, info_name="duo")
    context = typer.Context(COMMANDS[command], root, command) if command else root
    return ArgumentReader(COMMANDS[command], context).read(arguments)


def value(own: dict[str, Any], name: str) -> list[str]:
    """A value, unless this takes none."""
    option, flag = own.get(name), flags().get(name)
    is_switch = option.is_flag if option is not None else flag is not None and not flag.n_values
    return [] if is_switch else ["1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_short_options_in_all_pairs(command: str) -> None:
    """Side by side they are two, and the value of the first may look like the second; together one name or none."""
    own = NAMES[command]
    one_dash = [name for name in own if name[1] != "-"]
    for first, second in product(one_dash, one_dash):
        taken = [] if own[first].is_flag or own[first].name == "flash_attn" else [second]
        assert read(command, first, *taken, second, *value(own, second))[: 1 + len(taken)] == [first, *taken], first
    for short, letter in product((name for name in one_dash if len(name) == 2), string.ascii_letters):
        both = short + letter
        try:
            found, said = read(command, both, *value(own, both))[:1], ""
        except UsageError as error:
            found, said = [], str(error)
        assert (found == [both]) == (both in own)
        if both not in {*own, *flags(), *ALIASES} or said:
            assert said.startswith((f"No such option: {both}", f"{both}: "))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("-n512 -t4 -c4096 -ngl99 -s-1", {"max_tokens": 512, "n_threads": 4, "n_ctx": 4096, "n_gpu_layers": 99}),
        ("--n_predict=512 -t=4 -ngl=99 -s=-1", {"max_tokens": 512, "n_threads": 4, "n_gpu_layers": 99}),
        ("-n -2 -t -1 -tb=-1 -td-1", {"max_tokens": -1, "n_threads": None, "draft_n_threads": None}),
        ("--repeat-last-n -1 --top-k -1 --temp=-1", {"repeat_last_n": MAX_INT, "top_k": 0, "temperature": 0.0}),
        ("-p -f -n -1 -r -- -sys=--jinja", {"prompt": "-f", "stop": ["--"], "system_prompt": "--jinja"}),
        ("-fa --color -v", {"flash_attn": "on", "color": "auto", "verbose": True}),
        ("-fa 1 -co off", {"flash_attn": "on", "color": "never"}),
        ("-fa off --color=auto", {"flash_attn": "off", "color": "auto"}),
        ("-fa=0 --color never", {"flash_attn": "off", "color": "never"}),
        ("-fa -1 --color on", {"flash_attn": "auto", "color": "always"}),
    ],
)
def test_values_as_llama_cpp_spells_them(typed: str, found: dict[str, Any]) -> None:
    options = {one.name: one.default for one in declared(parse(*typed.split()), "duo")}
    assert {name: options[name] for name in found} == found


# llama.cpp's flags, each in each spelling: taken, left out with a note, or refused with what to use instead


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


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("--slots", ["--slots"]),
        ("--slots --props", ["--slots", "--props"]),
        ("--no-slots -np 2", ["--no-slots", "-np", "2"]),
        ("--slots 2 --port 0", ["-np", "2", "--port", "0"]),  # as before it was a switch
        ("--slots=2", ["-np", "2"]),
        ("--slots -1", ["-np", "-1"]),
        ("--slots many", ["-np", "many"]),
    ],
)
def test_slots_are_a_switch_or_their_number(typed: str, found: list[str]) -> None:
    assert read("lead", *typed.split()) == found


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
