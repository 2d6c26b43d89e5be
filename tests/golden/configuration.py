"""The lists of docs/configuration.md, from the options that the code declares."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import groupby
from typing import Any

import typer

from duo.cli.app import app
from duo.cli.llama_flags import ACCEPTED, ALIASES, NO_EFFECT, NOT_HERE, parts
from tests.command import ROOT

CONFIGURATION = ROOT / "docs" / "configuration.md"
START, END = "<!-- options:start -->", "<!-- options:end -->"
FLAGS_START, FLAGS_END = "<!-- flags:start -->", "<!-- flags:end -->"

Option = Any  # typer's own classes have no public names
Row = tuple[str, ...]


def with_options(document: str) -> str:
    """The document with the present options, and what becomes of llama.cpp's flags, between its markers."""
    document = _between(document, FLAGS_START, FLAGS_END, _all_flags())
    return _between(document, START, END, _all_commands())


def _between(document: str, start: str, end: str, text: str) -> str:
    before, _, rest = document.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n{text}{end}{after}"


def _all_flags() -> str:
    said = ["Accepted (the last five by `duo lead`):\n\n", _wrapped(_flags(parts(ACCEPTED)) + ".")]
    said += [_wrapped(", ".join(f"{_code(alias)} as {_code(own)}" for alias, own in ALIASES.items()) + ".")]
    said += ["\nNo effect here: these change only the speed, the log, or what duo does anyway.\n\n"]
    accepted = set(ACCEPTED.split())
    others = [part for part in parts(NO_EFFECT) if part.split()[0] not in accepted]
    said += [_wrapped(_flags(others) + ".")]
    said += ["\nNot here, and what to use instead; after `=` a value that is accepted:\n\n"]
    for why, text in NOT_HERE.items():
        others = [part for part in parts(text) if part.split()[0] not in accepted]
        said += [_wrapped(f"{_flags(others)}: {why}.")] * bool(others)
    return "".join(said)


def _flags(some: Iterable[str]) -> str:
    """The names of flags, without the words for their values."""
    found = []
    for part in some:
        head, *harmless = part.split(" = ")
        names = " ".join(_code(name) for name in head.split() if name.startswith("-"))
        found.append(names + (f" (= {' or '.join(harmless)})" if harmless else ""))
    return ", ".join(found)


def whole_command() -> Any:
    """`duo` with all its commands and their options."""
    root: Any = typer.main.get_command(app)
    for name in list(root.commands):
        root.resolve_command(typer.Context(root), [name])
    return root


def _all_commands() -> str:
    root = whole_command()
    shared = {_row(option, typer.Context(root)) for option in root.params}
    subcommands = [_command(f"duo {name}", one, shared) for name, one in root.commands.items()]
    return "\n".join([_command("duo", root, set()), *subcommands])


def _command(name: str, command: Any, shared: set[Row]) -> str:
    """A section: what is its own by panel, and the rest by name."""
    context = typer.Context(command, info_name=name)
    own = [(option, row) for option in command.params if (row := _row(option, context)) not in shared]
    said = [f"## `{name}`\n\n{command.help.splitlines()[0]}\n"]
    for panel, rows in _by_panel((option, row) for option, row in own):
        said.append(f"{panel}:\n\n" + "".join(map(_item, rows)))
    if same := [(option, (_code(option.opts[0]),)) for option in command.params if _row(option, context) in shared]:
        names = [f"{panel}: {', '.join(names for (names,) in rows)}." for panel, rows in _by_panel(same)]
        said.append("As for [`duo`](#duo):\n\n" + "".join(map(_wrapped, names)))
    return "\n".join(said)


def _by_panel(options: Iterable[tuple[Option, Row]]) -> list[tuple[str, list[Row]]]:
    """Their rows under the headings of --help, in its order."""
    key: Callable[[tuple[Option, Row]], str] = lambda item: _panel(item[0])  # noqa: E731
    found = list(options)
    order = list(dict.fromkeys(map(key, found)))
    found.sort(key=lambda item: order.index(key(item)))
    return [(panel, [row for _, row in rows]) for panel, rows in groupby(found, key)]


def _panel(option: Option) -> str:
    return option.rich_help_panel or ("Options" if option.param_type_name == "option" else "Arguments")


def _row(option: Option, context: typer.Context) -> Row:
    value = "" if getattr(option, "is_flag", False) else f" `{option.metavar or option.display_type(context)}`"
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
    # In a help text a backslash keeps rich from reading a bracket as markup; in Markdown it would vanish.
    text = option.help.replace("\\[", "[").replace("\\", "\\\\") + _bounds(option)
    return (f"{_names(option)}{value}".strip(), _default(option), ", ".join(map(_code, variables)), text)


def _names(option: Option) -> str:
    if option.param_type_name == "argument":
        return ""
    return ", ".join(map(_code, [*option.opts, *option.secondary_opts]))


def _default(option: Option) -> str:
    """As --help has it: `(auto)` is told, not a value that could be typed."""
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if isinstance(value, bool):
        return _code((option.opts if value else option.secondary_opts)[0]) if option.secondary_opts else ""
    return "" if value is None else _code(value.value if isinstance(value, Enum) else value)


def _bounds(option: Option) -> str:
    least, most = getattr(option, "min", None), getattr(option, "max", None)
    if least is None:
        return ""
    return f" At least {least}." if most is None else f" {least} to {most}."


def _item(row: Row) -> str:
    names, default, variables, text = row
    facts = [f"default: {default}"] * bool(default) + [f"variable: {variables}"] * bool(variables)
    return _wrapped(" ".join([names, *([f"({'; '.join(facts)})"] if facts else [])]) + f": {text}")


def _wrapped(text: str) -> str:
    """As an item of a list, in lines of at most 120 characters."""
    wrapper = textwrap.TextWrapper(
        118, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text.removeprefix(": ")) + "\n"


def _code(text: object) -> str:
    return f"`{text}`"
