"""Typer's parameters, from what configs say about their fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from duo.config.option import MAIN, OUTPUT, PANELS, Declared, Option, declared, read, with_values
from duo.errors import UsageError

T = TypeVar("T")

_TYPES: Mapping[str, Any] = {"bool": bool, "Path": Path, "list[str]": list[str], "list[Path]": list[Path]}
_MAX_SHOWN = 10**6  # a bound beyond it says nothing


def takes(defaults: T, command: str) -> Callable[[Callable[[typer.Context, T], None]], Callable[..., None]]:
    """Turn `call(context, options)` into a function whose parameters are the options of `command`, as Typer needs it.

    The options are `defaults` with the values that the command line and the environment set. Where the environment sets
    one of two options that exclude each other, and the command line the other, the latter wins. The field `given`, if
    there is one, gets the names of those on the command line. The function raises UsageError.
    """
    options = sorted(declared(defaults, command), key=lambda one: _order(one.option.panel))

    def decorate(call: Callable[[typer.Context, T], None]) -> Callable[..., None]:
        def wrapper(context: typer.Context, **values: Any) -> None:
            given = {one.name: values[one.name] for one in options if not _is_missing(values[one.name])}
            for one in options:
                other = one.option.excludes
                if comes_from(context, one.name, "COMMANDLINE") and comes_from(context, other, "ENVIRONMENT"):
                    given.pop(other, None)
            try:
                found = with_values(defaults, given, command)
            except UsageError as error:
                flags = {one.name: one.option.flag for one in options}
                flag = flags.get(error.parameter, error.parameter)
                raise UsageError(flag + str(error).removeprefix(error.parameter)) from None
            if hasattr(found, "given"):
                typed = frozenset(one.name for one in options if comes_from(context, one.name, "COMMANDLINE"))
                found = replace(found, given=typed)  # type: ignore[type-var]
            call(context, found)

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", kind, annotation=typer.Context), *map(_parameter, options)]
        main = {one.name for one in options if one.option.is_main} if command == "duo" else set[str]()
        parameters += _help_parameters(frozenset(main and main | {"help", "help_all"}))
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.said = {one.name: one.option for one in options}  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def comes_from(context: typer.Context, name: str, source: str) -> bool:
    """Whether an option was given there: on the COMMANDLINE or in the ENVIRONMENT."""
    return str(context.get_parameter_source(name)).endswith(source)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, list) and not value)


def _order(panel: str) -> int:
    return PANELS.index(panel) if panel in PANELS else len(PANELS)


def _parameter(one: Declared) -> inspect.Parameter:
    said, kind = one.option, str(one.field.type).removesuffix(" | None")
    annotation: Any = _TYPES.get(kind, str)
    if said.choices and not kind.startswith("int"):
        annotation = Literal[said.choices]
    is_plain = isinstance(one.default, (str, int, float))  # else --help has it in words
    about: dict[str, Any] = {
        "help": described(said), "metavar": said.metavar, "envvar": list(said.env) or None, "show_envvar": False,
        "show_default": said.default_text or (is_plain and one.default != ""), "hidden": said.hidden,
        "parser": None if kind in _TYPES else _parser(said, kind),
    }  # fmt: skip
    info = typer.Argument(**about) if said.is_argument else typer.Option(
        *said.flags.split(), rich_help_panel=said.panel or None, is_eager=said.is_eager, **about
    )  # fmt: skip
    default = one.default if is_plain else None
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation | None, info]
    )


def _parser(said: Option, kind: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        try:
            return read(said, kind, value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def described(said: Option) -> str:
    """The help of an option, with its bounds."""
    least, most = said.least, said.most
    if least is None or least < 0:
        return said.help
    if most is None or most >= _MAX_SHOWN:
        return f"{said.help} At least {least:g}."
    return f"{said.help} {least:g} to {most:g}."


# --help, which Typer itself would list first


def _help_parameters(main: frozenset[str]) -> list[inspect.Parameter]:
    """--help, and --help-all if --help shows only the options of these names."""

    def parameter(name: str, callback: Callable[..., None], text: str, *flags: str) -> inspect.Parameter:
        info = typer.Option(*flags, rich_help_panel=OUTPUT, is_eager=True, callback=callback, help=text)
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info])

    def show_main(context: typer.Context, value: bool) -> None:
        for one in context.command.params if value else ():
            one.hidden = one.name not in main  # type: ignore[attr-defined]
            one.rich_help_panel = MAIN  # type: ignore[attr-defined]
        _show_help(context, value)

    if not main:
        return [parameter("help", _show_help, "Show this message and exit.", "-h", "--help")]
    return [
        parameter("help", show_main, "Show the main options and exit.", "-h", "--help"),
        parameter("help_all", _show_help, "Show all options and exit.", "--help-all"),
    ]


def _show_help(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:  # not while the shell asks for completions
        typer.echo(context.get_help())
        raise typer.Exit
