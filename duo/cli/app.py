"""The command line: which command runs, with which options, and how it ends. A command is imported when it is used."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from duo.cli.arguments import CommandWithWholeNames, WholeNames, help_command, short_help, unknown_command
from duo.cli.commands import COMMANDS, function
from duo.cli.commands.options import BackOptions, LeadOptions, RunOptions
from duo.cli.main import show, show_versions
from duo.cli.terminal.console import discard_stdout, finish_notices, say, with_options
from duo.cli.terminal.interrupts import interrupts_raise
from duo.config.option import PANELS, Declared, Option, declared, read, with_values
from duo.errors import DeviceError, DuoError, UsageError
from duo.llama import spin_briefly

COMPLETE = "_DUO_COMPLETE"  # source_bash: print the completion script of bash; complete_bash: print completions
EPILOG = "Defaults depend on the machine and the models. Only the text goes to stdout."
_TYPES: Mapping[str, Any] = {"bool": bool, "Path": Path, "list[str]": list[str], "list[Path]": list[Path]}
_MAX_SHOWN = 10**6  # a bound beyond it says nothing

_new_app = partial(
    typer.Typer, add_completion=False, add_help_option=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


def run() -> int:
    """Run the command line. Returns the exit status: 0, 1 for errors, 2 for usage, 128 + n after signal n."""
    if COMPLETE in os.environ:
        # As Typer's add_completion, without its two options, which would be listed first in --help.
        from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

        completion_init()
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"]:  # `duo help`, `duo help lead` and `duo version` are what other programs have
        arguments = [*arguments[1:], "--help"]
    elif arguments == ["version"]:
        arguments = ["--version"]
    try:
        return int(app(arguments, prog_name="duo", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (DuoError, typer.TyperException, MemoryError, RuntimeError, OSError) as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Say what went wrong. Returns the exit status. Raises an error of duo's code."""
    status = 1
    match error:
        case DuoError():
            finish_notices()
            status, message = error.exit_status, with_options(str(error))
        case typer.TyperException():
            status = error.exit_code
            message = f"{error.format_message().removesuffix('.')} (see {help_command(getattr(error, 'ctx', None))})"
        case OSError():
            message = f"cannot write the text: {error.strerror}"
            discard_stdout()
        case RuntimeError() if "can't start new thread" not in str(error):
            raise error
        case _:
            message = f"out of memory: {str(error) or 'use a smaller context (-c), or free some'}"
    say(f"duo: error: {message}")
    if isinstance(error, DeviceError):
        from duo.llama.lifeline import is_lost  # noqa: PLC0415

        if is_lost():  # a thread hangs in llama.cpp, or must not call it again
            os._exit(status)  # nothing is buffered
    return status


# The commands


class _Group(WholeNames, TyperGroup):
    """A group whose commands have no options until one is used: declaring those of all takes a third of start-up."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` name; for Typer. Raises UsageError."""
        name = args[0]
        if name in COMMANDS:
            self.commands[name] = _declare(name)
        elif not ctx.resilient_parsing:
            raise UsageError(unknown_command(name, args[1:]))
        return super().resolve_command(ctx, args)


def _declare(name: str) -> Any:
    """The command with its options."""
    command = COMMANDS[name]

    def call(_: typer.Context, options: Any) -> None:
        _finish(command.function, options, closable=command.closable)

    one = _new_app()
    parameters = _with_parameters(call, command.options, name)
    one.command(name, cls=CommandWithWholeNames, help=command.help, add_help_option=False)(parameters)
    return typer.main.get_command(one)


def duo(context: typer.Context, options: Any) -> None:
    """Generate text with a large target model, faster: a small draft runs beside it.

    The text is the target's own, token for token; the draft changes only the speed.
    """
    if command := context.invoked_subcommand:
        if any(_comes_from(context, name, "COMMANDLINE") for name in context.params):
            raise UsageError(f"options of `duo {command}` must follow `{command}`")
    elif options.version:
        show_versions(verbose=options.verbose)
        sys.stdout.flush()
    elif options.list_devices:
        _finish("doctor.show_devices", options)
    elif not show():
        _finish("chat.converse" if options.conversation and not options.single_turn else "run.run", options)


def _finish(path: str, options: Any, *, closable: bool = True) -> None:
    """Run the function of a command and exit with its status: 0 if `closable` and the reader of stdout closes it."""
    takes_drafts = isinstance(options, LeadOptions) or (
        isinstance(options, RunOptions) and options.engine.back_port is not None
    )
    if isinstance(options, BackOptions) or (takes_drafts and not options.has_draft):
        spin_briefly()  # the other one may run on this machine, too
    try:
        with interrupts_raise():
            status = function(path)(options)
            sys.stdout.flush()
    except BrokenPipeError:
        if not closable:
            raise
        discard_stdout()
        status = 0
    raise typer.Exit(status)


# Typer's parameters, from what configs say about their fields


def _with_parameters(call: Callable[[typer.Context, Any], None], defaults: Any, command: str) -> Callable[..., None]:
    """`call(context, options)` as a function whose parameters are the options of `command`, as Typer needs it.

    The options are `defaults` with the values that the command line and the environment set. Where the environment sets
    one of two options that exclude each other, and the command line the other, the latter wins. The field `given`, if
    there is one, gets the names of those on the command line. The function raises UsageError.
    """
    options = sorted(declared(defaults, command), key=lambda one: PANELS.index(one.option.panel))
    said = {one.name: one.option for one in options}

    def wrapper(context: typer.Context, **values: Any) -> None:
        typed = {name for name in said if _comes_from(context, name, "COMMANDLINE")}
        excluded = {said[name].excludes for name in typed}
        given = {
            name: value
            for name, value in values.items()
            if value not in (None, []) and not (name in excluded and _comes_from(context, name, "ENVIRONMENT"))
        }
        try:
            found = with_values(defaults, given, command)
            call(context, replace(found, given=frozenset(typed)) if hasattr(found, "given") else found)
        except UsageError as error:
            if flag := said.get(error.parameter, Option()).flag:
                error.args = (flag + str(error).removeprefix(error.parameter),)
            raise

    parameters = [_parameter("context", None, typer.Context), *map(_option, options)]
    if command == "duo":
        parameters.append(_help("help", "Show the main options and exit.", "-h", "--help", is_short=True))
        parameters.append(_help("help_all", "Show all options and exit.", "--help-all"))
    else:
        parameters.append(_help("help", "Show this message and exit.", "-h", "--help"))
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.said = said  # type: ignore[attr-defined]
    return wrapper


def _comes_from(context: typer.Context, name: str, source: str) -> bool:
    """Whether an option was given there: on the COMMANDLINE or in the ENVIRONMENT."""
    return str(context.get_parameter_source(name)).endswith(source)


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(one: Declared) -> inspect.Parameter:
    """An option that is declared, as a parameter that Typer reads."""
    said, kind = one.option, str(one.field.type).removesuffix(" | None")
    choices = () if kind.startswith("int") else said.choices
    is_plain = isinstance(one.default, (str, int, float))  # else --help has it in words
    metavar, words = re.search(r"(?:^| )([^-$(]\S*)", said.usage), re.search(r" \((.*)\)", said.usage)

    def complete(incomplete: str) -> list[str]:
        return [one for one in choices if one.startswith(incomplete)]

    def parse(value: Any) -> Any:
        try:
            return read(said, kind, value) if isinstance(value, str) else value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    about: dict[str, Any] = {
        "help": _described(said),
        "metavar": metavar[1] if metavar else f"<{'|'.join(choices)}>" if choices else None,
        "envvar": re.findall(r"\$(\w+)", said.usage) or None,
        "show_envvar": False,
        "show_default": words[1] if words else is_plain and one.default != "",
        "hidden": said.hidden,
        "parser": None if kind in _TYPES else parse,
        "autocompletion": complete if choices else None,
        "rich_help_panel": said.panel or None,
    }
    flags = [word for word in said.usage.split() if word.startswith("-")]
    info = typer.Option(*flags, **about) if flags else typer.Argument(**about)
    return _parameter(one.name, one.default if is_plain else None, Annotated[_TYPES.get(kind, str) | None, info])


def _described(said: Option) -> str:
    """The help of an option, with its bounds."""
    if said.bounds is None or said.bounds.least < 0:
        return said.help
    least, most, _ = said.bounds
    return f"{said.help} " + (f"At least {least:g}." if most >= _MAX_SHOWN else f"{least:g} to {most:g}.")


def _help(name: str, text: str, *flags: str, is_short: bool = False) -> inspect.Parameter:
    """An option that shows all options, or only the main ones. Typer would list its own --help first."""

    def show_help(context: typer.Context, value: bool) -> None:
        if not value or context.resilient_parsing:  # the shell asks for completions
            return
        typer.echo(short_help(context) if is_short else context.get_help())
        raise typer.Exit

    info = typer.Option(*flags, rich_help_panel="Output", is_eager=True, callback=show_help, help=text)
    return _parameter(name, False, Annotated[bool, info])


app = _new_app(cls=_Group)
for _name, _command in COMMANDS.items():  # for the list of commands
    app.command(_name, help=_command.help, add_help_option=False)(lambda: None)
_whole = app.callback(
    invoke_without_command=True, epilog=EPILOG, add_help_option=False, subcommand_metavar="", help=duo.__doc__
)
_whole(_with_parameters(duo, RunOptions(), "duo"))
