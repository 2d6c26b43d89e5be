"""The lists of docs/configuration.md and the types in duo/config/settings.pyi, from the options that are declared."""

import textwrap
from collections import defaultdict
from typing import Any

import typer

from duo.cli.app import app
from duo.cli.arguments import ALIASES, NO_EFFECT, flags
from duo.config import EngineConfig, GenerationConfig
from duo.config.option import declared
from tests.command import ROOT

CONFIGURATION = ROOT / "docs" / "configuration.md"
SETTINGS = ROOT / "duo" / "config" / "settings.pyi"
_HEAD = '''"""The types of keyword arguments. Generated from the configs by `make docs`: change these instead."""

from collections.abc import Mapping, Sequence
from typing import TypedDict
'''
START, END = "<!-- options:start -->", "<!-- options:end -->"
FLAGS_START, FLAGS_END = "<!-- flags:start -->", "<!-- flags:end -->"


def with_options(document: str) -> str:
    """The document with the present options, and what becomes of llama.cpp's flags, between its markers."""
    for start, end, text in ((FLAGS_START, FLAGS_END, _all_flags()), (START, END, _all_commands())):
        before, _, rest = document.partition(start)
        document = f"{before}{start}\n{text}{end}{rest.partition(end)[2]}"
    return document


def _all_flags() -> str:
    own = names_of(whole_command())
    found = defaultdict(list)
    for flag in dict.fromkeys(flags().values()):
        if flag.names[0] not in own:
            names = " ".join(f"`{name}`" for name in flag.names)
            found[flag.instead].append(names + f" (= {' or '.join(flag.harmless)})" * bool(flag.harmless))
    said = [_wrapped(", ".join(f"`{alias}` as `{own}`" for alias, own in ALIASES.items()) + ".")]
    said += ["\nNo effect here: these change only the speed, the log, or what duo does anyway.\n\n"]
    said += [_wrapped(", ".join(found.pop(NO_EFFECT)) + ".")]
    said += ["\nNot here, and what to use instead; after `=` a value that is accepted:\n\n"]
    return "".join([*said, *(_wrapped(f"{', '.join(names)}: {why}.") for why, names in found.items())])


def names_of(command: Any) -> dict[str, Any]:
    """The options of a command, by each of their names."""
    return {
        name: option for option in command.params for name in (*option.opts, *option.secondary_opts) if name[0] == "-"
    }


def whole_command() -> Any:
    """`duo` with all its commands and their options."""
    root: Any = typer.main.get_command(app)
    for name in list(root.commands):
        root.resolve_command(typer.Context(root), [name])
    return root


def _all_commands() -> str:
    root = whole_command()
    shared = {_item(option) for option in root.params}
    subcommands = [_command(f"duo {name}", one, shared) for name, one in root.commands.items()]
    return "\n".join([_command("duo", root, set()), *subcommands])


def _command(name: str, command: Any, shared: set[str]) -> str:
    """A section: what is its own by panel, and the rest by name."""
    own, same = defaultdict(list), defaultdict(list)
    for option in command.params:
        panel = option.rich_help_panel or ("Options" if option.param_type_name == "option" else "Arguments")
        if (item := _item(option)) in shared:
            same[panel].append(f"`{option.opts[0]}`")
        else:
            own[panel].append(item)
    said = [f"## `{name}`\n\n{command.help.splitlines()[0]}\n"]
    said += [f"{panel}:\n\n" + "".join(items) for panel, items in own.items()]
    if same:
        names = (_wrapped(f"{panel}: {', '.join(names)}.") for panel, names in same.items())
        said.append("As for [`duo`](#duo):\n\n" + "".join(names))
    return "\n".join(said)


def _item(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts] if option.param_type_name == "option" else []
    value = "" if getattr(option, "is_flag", False) else f" `{option.metavar}`"
    facts = [f"default: {default}"] if (default := _default(option)) else []
    if option.envvar:
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar
        facts.append("variable: " + ", ".join(f"`{variable}`" for variable in variables))
    # In a help text a backslash keeps rich from reading a bracket as markup; in Markdown it would vanish.
    text = option.help.replace("\\[", "[").replace("\\", "\\\\")
    head = ", ".join(f"`{name}`" for name in names) + value + f" ({'; '.join(facts)})" * bool(facts)
    return _wrapped(f"{head.strip()}: {text}")


def _default(option: Any) -> str:
    """As --help has it: `(auto)` is told, not a value that could be typed."""
    value = option.default
    if isinstance(option.show_default, str):
        return option.show_default
    if isinstance(value, bool):
        return f"`{(option.opts if value else option.secondary_opts)[0]}`" if option.secondary_opts else ""
    return "" if value is None else f"`{value}`"


def _wrapped(text: str) -> str:
    """As an item of a list, in lines of at most 120 characters."""
    wrapper = textwrap.TextWrapper(
        118, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text) + "\n"


def settings() -> str:
    """The text of duo/config/settings.pyi."""
    options = _class(
        "TextOptions", "Options of Engine.stream(), generate() and others: see GenerationConfig.", GenerationConfig()
    )
    grammar = "    json_schema: str | Mapping[str, object] | None  # instead of a grammar\n"
    return _HEAD + _class("Settings", "Settings of duo.load(): see EngineConfig.", EngineConfig()) + options + grammar


def _class(name: str, about: str, config: Any) -> str:
    lines = [f"    {one.name}: {one.option.accepts or one.field.type}\n" for one in declared(config)]
    return f'\nclass {name}(TypedDict, total=False):\n    """{about}"""\n\n' + "".join(lines)
