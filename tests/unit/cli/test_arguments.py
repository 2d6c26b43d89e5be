"""Options are matched whole, in every command, and take the values of llama.cpp; errors are in test_usage.py."""

from __future__ import annotations

import string
from itertools import product
from typing import Any

import pytest
import typer

from duo.cli.arguments import ArgumentReader
from duo.cli.llama_flags import ALIASES, flags
from duo.config.option import MAX_INT, declared
from duo.errors import UsageError
from tests.golden.configuration import names_of, whole_command
from tests.unit.cli.runner import parse

ROOT = whole_command()
COMMANDS: dict[str, Any] = {"": ROOT, **ROOT.commands}
NAMES = {name: names_of(command) for name, command in COMMANDS.items()}


def read(command: str, *arguments: str) -> list[str]:
    """What Typer's parser gets."""
    root = typer.Context(ROOT, info_name="duo")
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
