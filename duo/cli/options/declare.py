"""How a command's options are declared: fields of dataclasses, so that each option is written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar

import typer

MAIN = "Main options"
MODELS = "Models"
PROMPT = "Prompt and text"
DRAFTING = "Drafting"
HARDWARE = "Threads"
CONTEXT = "Context"
OUTPUT = "Output"


def option(*names: str, panel: str, help: str, env: str | list[str] | None = None, **more: Any) -> Any:  # noqa: A002
    """An option with these names, in a panel of --help, that an environment variable can set."""
    return typer.Option(*names, rich_help_panel=panel, help=help, envvar=env, show_envvar=False, **more)


def show_help(context: typer.Context, value: bool) -> None:
    """A callback for --help: Typer would show its own before all other options."""
    if value and not context.resilient_parsing:  # not while the shell asks for completions
        typer.echo(context.get_help())
        raise typer.Exit


# fmt: off
HelpOpt = Annotated[bool, option(
    "-h", "--help", panel=OUTPUT, is_eager=True, callback=show_help, help="Show this message and exit.")]
# For a process that another duo has started.
UntilEofOpt = Annotated[bool, typer.Option("--until-eof", hidden=True, help="End at once when standard input does.")]
# fmt: on


T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[[typer.Context, T], None]], Callable[..., None]]:
    """Make `command(context, options)` a function whose parameters are the options in `options`, for Typer to read.

    They are the annotated fields of the groups in `offers`, in that order, and then its own. Other fields that it
    inherits are fixed for this command. Its own plain fields only change defaults.
    """

    def decorate(command: Callable[[typer.Context, T], None]) -> Callable[..., None]:
        def wrapper(context: typer.Context, **values: Any) -> None:
            command(context, options(**values))

        offered: dict[str, Any] = {}
        for group in (*getattr(options, "offers", ()), options):
            hints = inspect.get_annotations(group, eval_str=True)
            offered |= {name: hint for name, hint in hints.items() if hasattr(hint, "__metadata__")}
        defaults = {field.name: field.default for field in fields(options)}  # type: ignore[arg-type]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", kind, annotation=typer.Context)]
        for name, hint in offered.items():
            default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        return wrapper

    return decorate
