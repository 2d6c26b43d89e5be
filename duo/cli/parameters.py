"""Typer's parameters, from what configs say about their fields."""

import inspect
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from duo.config.option import PANELS, Declared, Option, declared, read, with_values
from duo.errors import UsageError

T = TypeVar("T")

_TYPES: Mapping[str, Any] = {"bool": bool, "Path": Path, "list[str]": list[str], "list[Path]": list[Path]}
_MAX_SHOWN = 10**6  # a bound beyond it says nothing


def with_parameters(call: Callable[[typer.Context, T], None], defaults: T, command: str) -> Callable[..., None]:
    """`call(context, options)` as a function whose parameters are the options of `command`, as Typer needs it.

    The options are `defaults` with the values that the command line and the environment set. Where the environment sets
    one of two options that exclude each other, and the command line the other, the latter wins. The field `given`, if
    there is one, gets the names of those on the command line. The function raises UsageError.
    """
    options = sorted(declared(defaults, command), key=lambda one: PANELS.index(one.option.panel))
    said = {one.name: one.option for one in options}

    def wrapper(context: typer.Context, **values: Any) -> None:
        typed = {name for name in said if comes_from(context, name, "COMMANDLINE")}
        excluded = {said[name].excludes for name in typed}
        given = {
            name: value
            for name, value in values.items()
            if value not in (None, []) and not (name in excluded and comes_from(context, name, "ENVIRONMENT"))
        }
        try:
            found = with_values(defaults, given, command)
            call(context, replace(found, given=frozenset(typed)) if hasattr(found, "given") else found)  # type: ignore[type-var]
        except UsageError as error:
            if flag := said.get(error.parameter, Option()).flag:
                error.args = (flag + str(error).removeprefix(error.parameter),)
            raise

    parameters = [_parameter("context", None, typer.Context), *map(_option, options)]
    main = {one.name for one in options if one.option.is_main or one.option.panel == PANELS[0]}
    parameters += _help(main if command == "duo" else set())
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.said = said  # type: ignore[attr-defined]
    return wrapper


def comes_from(context: typer.Context, name: str, source: str) -> bool:
    """Whether an option was given there: on the COMMANDLINE or in the ENVIRONMENT."""
    return str(context.get_parameter_source(name)).endswith(source)


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(one: Declared) -> inspect.Parameter:
    said, kind = one.option, str(one.field.type).removesuffix(" | None")
    annotation: Any = _TYPES.get(kind, str)
    if said.choices and not kind.startswith("int"):
        annotation = Literal[said.choices]
    is_plain = isinstance(one.default, (str, int, float))  # else --help has it in words
    metavar, words = re.search(r"(?:^| )([^-$(]\S*)", said.usage), re.search(r" \((.*)\)", said.usage)
    about: dict[str, Any] = {
        "help": _described(said),
        "metavar": metavar and metavar[1],
        "envvar": re.findall(r"\$(\w+)", said.usage) or None,
        "show_envvar": False,
        "show_default": words[1] if words else is_plain and one.default != "",
        "hidden": said.hidden,
        "parser": None if kind in _TYPES else _parser(said, kind),
        "rich_help_panel": said.panel or None,
    }
    flags = [word for word in said.usage.split() if word.startswith("-")]
    info = typer.Option(*flags, **about) if flags else typer.Argument(**about)
    return _parameter(one.name, one.default if is_plain else None, Annotated[annotation | None, info])


def _parser(said: Option, kind: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        try:
            return read(said, kind, value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _described(said: Option) -> str:
    """The help of an option, with its bounds."""
    if said.bounds is None or said.bounds.least < 0:
        return said.help
    least, most, _ = said.bounds
    return f"{said.help} " + (f"At least {least:g}." if most >= _MAX_SHOWN else f"{least:g} to {most:g}.")


def _help(main: set[str]) -> list[inspect.Parameter]:
    """--help, which Typer itself would list first, and --help-all if --help shows only the options of these names."""

    def parameter(name: str, text: str, *flags: str, shows: Container[str] = ()) -> inspect.Parameter:
        def show(context: typer.Context, value: bool) -> None:
            if not value or context.resilient_parsing:  # the shell asks for completions
                return
            for one in context.command.params if shows else ():
                one.hidden = one.name not in shows  # type: ignore[attr-defined]
                one.rich_help_panel = PANELS[0]  # type: ignore[attr-defined]
            typer.echo(context.get_help())
            raise typer.Exit

        info = typer.Option(*flags, rich_help_panel="Output", is_eager=True, callback=show, help=text)
        return _parameter(name, False, Annotated[bool, info])

    if not main:
        return [parameter("help", "Show this message and exit.", "-h", "--help")]
    return [
        parameter("help", "Show the main options and exit.", "-h", "--help", shows=main | {"help", "help_all"}),
        parameter("help_all", "Show all options and exit.", "--help-all"),
    ]
