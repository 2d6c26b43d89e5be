"""Options are matched whole, in every command; for any other name, the nearest names are said."""

from __future__ import annotations

import string
from itertools import product
from typing import Any

import pytest
import typer

from duo.cli.arguments import ArgumentReader
from duo.cli.llama_flags import ALIASES, flags
from duo.config.option import MAX_INT
from duo.errors import UsageError
from tests.command import assert_refused
from tests.golden.configuration import whole_command
from tests.unit.cli.runner import duo, parse

ROOT = whole_command()
COMMANDS: dict[str, Any] = {"": ROOT, **ROOT.commands}


def names(command: str) -> dict[str, Any]:
    """The options of a command, by each of their names."""
    options = COMMANDS[command].params
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts) if name[0] == "-"}


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
    own = names(command)
    one_dash = [name for name in own if name[1] != "-"]
    for first, second in product(one_dash, one_dash):
        taken = [] if own[first].is_flag or own[first].name == "flash_attn" else [second]
        found = read(command, first, *taken, second, *value(own, second))
        assert found[: 1 + len(taken)] == [first, *taken], first
    for short, letter in product((name for name in one_dash if len(name) == 2), string.ascii_letters):
        both = short + letter
        said = ""
        try:
            found = read(command, both, *value(own, both))
        except UsageError as error:
            found, said = [], str(error)
        if both in own:
            assert found[:1] == [both]
        elif not said:
            assert both in flags() or both in ALIASES
        else:
            assert said.startswith((f"No such option: {both}", f"{both}: "))


@pytest.mark.parametrize("typed", ["-n512 -t4 -c4096 -ngl99 -s-1", "--n_predict=512 -t=4 -c=4096 -ngl=99 -s=-1"])
def test_attached_numbers(typed: str) -> None:
    options = parse(*typed.split())
    assert (options.generation.stop.n_predict, options.engine.n_threads) == (512, 4)
    assert (options.engine.n_ctx, options.engine.n_gpu_layers) == (4096, 99)


def test_values_of_llama_cpp_with_the_same_meaning() -> None:
    options = parse("-n", "-2", "-t", "-1", "-tb=-1", "-td-1", "--repeat-last-n", "-1", "--top-k", "-1", "--temp=-1")
    engine, sampling = options.engine, options.config().sampling
    assert options.generation.stop.n_predict == -1
    assert (engine.n_threads, engine.n_threads_batch, engine.draft_n_threads) == (None, None, None)
    assert (sampling.repeat_last_n, sampling.top_k, sampling.temp) == (MAX_INT, 0, 0.0)


def test_values_that_begin_with_a_dash() -> None:
    options = parse("-p", "-f", "-n", "-1", "-r", "--", "-sys=--jinja")
    assert (options.prompt, options.generation.stop.n_predict) == ("-f", -1)
    assert (options.reverse_prompt, options.system_prompt) == (["--"], "--jinja")


@pytest.mark.parametrize(
    ("typed", "flash", "color"),
    [
        ("-fa --color -v", "on", "auto"),
        ("-fa 1 -co off", "on", "never"),
        ("-fa off --color=auto", "off", "auto"),
        ("-fa=0 --color never", "off", "never"),
        ("-fa -1 --color on", "auto", "always"),
    ],
)
def test_switches_as_llama_cpp_spells_them(typed: str, flash: str, color: str) -> None:
    options = parse(*typed.split())
    assert (options.engine.flash_attn, options.color) == (flash, color)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("chat a b", "(b) (see duo chat --help)"),
        ("lead --host", "--host requires an argument (see duo lead --help)"),
        ("lead --port 80a", "'--port': '80a' is not a number (see duo lead --help)"),
        ("-m x --temp hot", "'--temp' / '--temperature': 'hot' is not a number (see duo --help-all)"),
        ("-m x --chat=1", "--chat takes no value"),
        *((f"-m x {name}", f"No such option: {name}") for name in ("-cnvx", "-nx", "-n5x", "-pHello", "-v1", "-5")),
        ("-m x --tempp 1", "No such option: --tempp; similar: --temp, "),
        ("-m x -dm y", "No such option: -dm; similar: -md, "),
        ("lead --no-jina", "--no-jina; similar: --no-jinja"),
        ("--host 0.0.0.0", "--host; an option of `duo lead` and `duo rpc-server` (see duo --help-all)"),
        ("doctor -m x", "-m; an option of `duo` (see duo doctor --help)"),
        ("-x", "No such option: -x (see duo --help-all)"),
    ],
)
def test_what_does_not_fit(arguments: str, said: str) -> None:
    assert_refused(duo(*arguments.split()), said, status=2)
