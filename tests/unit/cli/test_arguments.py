"""Options are matched whole, in every command; for any other name, the nearest names are said."""

from __future__ import annotations

import shlex
import string
from itertools import product
from typing import Any

import pytest
import typer

from duo.cli.arguments import ArgumentReader
from duo.cli.llama_flags import ALIASES, flags
from duo.config.option import MAX_INT, declared
from duo.errors import UsageError
from tests.command import assert_refused
from tests.golden.configuration import names_of, whole_command
from tests.unit.cli.runner import duo, parse

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


@pytest.mark.parametrize(
    ("typed", "said"),
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
        # Words that users of other programs type
        ("run llama3.2", "no command 'run': `duo chat -hf USER/REPO:QUANT` or `duo -hf"),
        ("run hf.co/user/repo:Q8_0", "`duo chat -hf user/repo:Q8_0` or"),
        ("run --verbose ./main.gguf", "`duo chat -m ./main.gguf` or"),
        ("pul user/repo", "no command 'pul': `duo chat -hf user/repo` or"),
        ("serv", "no command 'serv': `duo lead -m FILE` serves a model"),
        ("ps", "no service in the background"),
        ("'my model.gguf' -p x", "a model follows -m: `duo chat -m 'my model.gguf'`, or `duo -m"),
        ("http://localhost:5555", "`duo chat http://localhost:5555`"),
        ("'Why is the sky blue?'", "a prompt follows -p: `duo -m FILE -p 'Why is the sky blue?'`"),
        ("benhc", "no command 'benhc': similar: bench\n"),
        ("-m a.gguf lad", "similar: lead\n"),
        ("-m a.gguf -v 1", "no command '1': a switch such as -v takes no value"),
        ("profile", "`duo tune --list`"),
        ("help nonsense", "no command 'nonsense': `duo --help` lists the commands"),
    ],
)
def test_what_does_not_fit(typed: str, said: str) -> None:
    assert_refused(duo(*shlex.split(typed)), said, status=2)
