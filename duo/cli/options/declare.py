"""Options as fields of dataclasses, each written once."""

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
THREADS = "Threads"
CONTEXT = "Context"
OUTPUT = "Output"


def option(*names: str, panel: str, help: str, env: str | list[str] | None = None, **more: Any) -> Any:  # noqa: A002
    """An option in a panel of --help, which the environment variable `env` can set."""
    return typer.Option(*names, rich_help_panel=panel, help=help, envvar=env, show_envvar=False, **more)


def show_help(context: typer.Context, value: bool) -> None:
    """Callback of --help: Typer would list its own --help first."""
    if value and not context.resilient_parsing:  # not while the shell asks for completions
        typer.echo(context.get_help())
        raise typer.Exit


# fmt: off
HelpOpt = Annotated[bool, option(
    "-h", "--help", panel=OUTPUT, is_eager=True, callback=show_help, help="Show this message and exit.")]
# For child processes of duo.
UntilEofOpt = Annotated[bool, typer.Option("--until-eof", hidden=True, help="Exit when standard input is closed.")]
# fmt: on


T = TypeVar("T")


EXCLUSIVE = (
    ("model", "hf_repo"), ("hf_repo", "model"), ("model_draft", "hf_repo_draft"), ("hf_repo_draft", "model_draft"),
)  # fmt: skip


def comes_from(context: typer.Context, name: str, source: str) -> bool:
    """Whether an option was given there: on the COMMANDLINE or in the ENVIRONMENT."""
    return str(context.get_parameter_source(name)).endswith(source)


def takes(options: type[T]) -> Callable[[Callable[[typer.Context, T], None]], Callable[..., None]]:
    """Turn `command(context, options)` into a function whose parameters are the options, as Typer needs it.

    These are the annotated fields of the groups in `offers`, in that order, then those of `options` itself. Other
    inherited fields are fixed for this command; plain fields of `options` change defaults. Where the environment sets
    one of two options that exclude each other, and the command line the other, the latter wins.
    """

    def decorate(command: Callable[[typer.Context, T], None]) -> Callable[..., None]:
        def wrapper(context: typer.Context, **values: Any) -> None:
            for typed, inherited in EXCLUSIVE:
                if comes_from(context, typed, "COMMANDLINE") and comes_from(context, inherited, "ENVIRONMENT"):
                    values[inherited] = None
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
