"""Options are matched whole, in every command; for any other name, the nearest names are said."""

from __future__ import annotations

import string
from itertools import chain, product
from typing import Any

import pytest
import typer

from duo.cli.arguments import ArgumentReader
from duo.cli.llama_flags import ALIASES, flags
from duo.config import MAX_INT
from duo.config.option import nearest
from duo.errors import UsageError
from tests.command import assert_refused
from tests.golden.configuration import whole_command
from tests.unit.cli.runner import duo, parse

ROOT = whole_command()
COMMANDS: dict[str, Any] = {"": ROOT, **ROOT.commands}
LETTERS = string.ascii_letters


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


# Options with one dash and one letter, and what may follow the letter: those of all names, and each letter.
SHORT = {command: [name for name in names(command) if len(name) == 2] for command in COMMANDS}
KNOWN = {name for command in COMMANDS for name in names(command)} | {*ALIASES, *flags()}
TAILS = sorted({name[2:] for name in KNOWN if name[1] != "-" and len(name) > 2} | {*LETTERS})


@pytest.mark.parametrize("command", COMMANDS)
def test_short_options_in_all_pairs_are_one_name_or_none(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArgumentReader, "_advice", lambda *_: "")  # slow for so many
    own, n_refused = names(command), 0
    for short, tail in product(SHORT[command], TAILS):
        both = short + tail
        found, said = [], ""
        try:
            found = read(command, both, *value(own, both))
        except UsageError as error:
            n_refused += 1
            said = str(error)
        if both in own:
            assert found[:1] == [both], both
        elif said:
            assert said.startswith((f"No such option: {both} (see duo", f"{both}: ")), both
        else:
            assert both in flags() or both in ALIASES, both
    assert n_refused > 30 * len(SHORT[command])


@pytest.mark.parametrize("command", COMMANDS)
def test_all_pairs_of_short_options_apart(command: str) -> None:
    """The value of the first may look like the second."""
    own = names(command)
    one_dash = [name for name in own if name[1] != "-"]
    for first, second in product(one_dash, one_dash):
        taken = [] if own[first].is_flag or own[first].name == "flash_attn" else [second]
        found = read(command, first, *taken, second, *value(own, second))
        assert found[: 1 + len(taken)] == [first, *taken], first


@pytest.mark.parametrize("typed", ["-n512 -t4 -c4096 -ngl99 -s-1", "-n=512 -t=4 -c=4096 -ngl=99 -s=-1"])
def test_attached_numbers(typed: str) -> None:
    options = parse(*typed.split())
    assert (options.generation.stop.n_predict, options.engine.n_threads) == (512, 4)
    assert (options.engine.n_ctx, options.engine.n_gpu_layers) == (4096, 99)


@pytest.mark.parametrize("argument", ["-cnvx", "-no-cvn", "-nx", "-ve", "-n5x", "-pHello", "-v1", "-tx4", "-5"])
def test_nothing_else_is_attached(argument: str) -> None:
    assert_refused(duo("-m", "x", "-p", "x", argument), f"No such option: {argument}", status=2)


def test_values_of_llama_cpp_with_the_same_meaning() -> None:
    options = parse("-n", "-2", "-t", "-1", "-tb=-1", "-td-1", "--repeat-last-n", "-1")
    engine = options.engine
    assert options.generation.stop.n_predict == -1
    assert (engine.n_threads, engine.n_threads_batch, engine.draft_n_threads) == (None, None, None)
    assert options.config().sampling.repeat_last_n == MAX_INT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("lead main.gguf", "unexpected argument 'main.gguf': a model follows -m (see duo lead --help)"),
        ("chat a b", "unexpected argument 'b' (see duo chat --help)"),
        ("lead --host", "--host requires an argument (see duo lead --help)"),
        ("lead --port 80a", "'--port': '80a' is not an integer (see duo lead --help)"),
        ("-m x --temp hot", "'--temp' / '--temperature': 'hot' is not a number (see duo --help-all)"),
    ],
)
def test_values_and_texts_that_do_not_fit(arguments: str, said: str) -> None:
    assert_refused(duo(*arguments.split()), said, status=2)


def test_values_that_begin_with_a_dash() -> None:
    options = parse("-p", "-f", "-n", "-1", "--temp=-1", "-r", "--", "-sys=--jinja")
    assert (options.prompt, options.generation.stop.n_predict) == ("-f", -1)
    assert (options.reverse_prompt, options.system_prompt) == (["--"], "--jinja")


@pytest.mark.parametrize(
    ("typed", "flash", "color"),
    [
        ("-fa --color -v", "on", "auto"),
        ("-fa on --color on", "on", "always"),
        ("-fa 1 -co off", "on", "never"),
        ("-fa off --color=auto", "off", "auto"),
        ("-fa=0 --color never", "off", "never"),
        ("-fa -1 --color always", "auto", "always"),
        ("--color -fa", "on", "auto"),
    ],
)
def test_switches_as_llama_cpp_spells_them(typed: str, flash: str, color: str) -> None:
    options = parse(*typed.split())
    assert (options.engine.flash_attn, options.color) == (flash, color)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-m x --tempp 1", "--tempp; similar: --temp, "),
        ("-m x -ctxk", "-ctxk; similar: -ctk, "),
        ("lead --no-jina", "--no-jina; similar: --no-jinja"),
        ("--host 0.0.0.0", "--host; an option of `duo lead` and `duo rpc-server` (see duo --help-all)"),
        ("doctor -m x", "-m; an option of `duo` (see duo doctor --help)"),
        ("bench --repetition 3", "--repetition; similar: --repetitions"),
        ("-x", "-x (see duo --help-all)"),
        ("-m x -dm y", "-dm; similar: -md, "),
        ("-m x --spm-infil", "--spm-infil; similar: --profile (see"),
    ],
)
def test_the_nearest_names(arguments: str, said: str) -> None:
    assert_refused(duo(*arguments.split()), f"No such option: {said}", status=2)


def test_a_switch_takes_no_value() -> None:
    for name in ("--chat", "-v", "--jinja"):
        assert_refused(duo("-m", "x", f"{name}=1"), f"{name} takes no value", status=2)


def test_underscores_in_long_names_as_in_llama_cpp() -> None:
    assert parse("--n_predict", "7").generation.stop.n_predict == 7


def test_nearest_is_at_most_three_names_the_best_first() -> None:
    assert nearest("--temp", ["--temp", "--tempo", "--temper", "--temperature", "--top-k"])[0] == "--temp"
    assert len(nearest("--temp", ["--temp", "--tempo", "--temper", "--temps"])) == 3
    assert nearest("xyz", chain(["abc"])) == []
