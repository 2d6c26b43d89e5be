"""The command line: which command runs, and how it ends. What a command needs is imported when it is used."""

import os
import sys
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from duo.cli.about import show, show_versions
from duo.cli.arguments import CommandWithWholeNames, WholeNames, help_command, unknown_command
from duo.cli.commands import COMMANDS, function
from duo.cli.options.by_command import BackOptions, LeadOptions, RunOptions
from duo.cli.parameters import comes_from, with_parameters
from duo.cli.terminal.console import discard_stdout, say, with_options
from duo.cli.terminal.interrupts import interrupts_raise
from duo.errors import DeviceError, DuoError, UsageError
from duo.llama import spin_briefly

COMPLETE = "_DUO_COMPLETE"  # source_bash: print the completion script of bash; complete_bash: print completions
EPILOG = "Defaults depend on the machine and the models. The text goes to stdout, everything else to stderr."
_NO_SWITCH = "Input should be a valid boolean, unable to interpret input"  # only a variable has a value: no flag

_new_app = partial(
    typer.Typer, add_completion=False, add_help_option=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


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
    parameters = with_parameters(call, command.options, name)
    one.command(name, cls=CommandWithWholeNames, help=command.help, add_help_option=False)(parameters)
    return typer.main.get_command(one)


def duo(context: typer.Context, options: Any) -> None:
    """Generate text with a large target model, faster: a small draft model runs concurrently.

    The text is the target's own, token for token; the draft changes only the speed.
    """
    if command := context.invoked_subcommand:
        if any(comes_from(context, name, "COMMANDLINE") for name in context.params):
            raise UsageError(f"options of `duo {command}` must follow `{command}`")
    elif options.version:
        show_versions(verbose=options.verbose)
        sys.stdout.flush()
    elif options.list_devices:
        _finish("doctor.show_devices", options)
    elif not show():
        _finish("chat.converse" if options.conversation and not options.single_turn else "run.run", options)


app = _new_app(cls=_Group)
for _name, _command in COMMANDS.items():  # for the list of commands
    app.command(_name, help=_command.help, add_help_option=False)(lambda: None)
_whole = app.callback(
    invoke_without_command=True, epilog=EPILOG, add_help_option=False, subcommand_metavar="", help=duo.__doc__
)
_whole(with_parameters(duo, RunOptions(), "duo"))


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
    except DuoError as error:
        from duo.cli.terminal.log import finish_notices  # noqa: PLC0415 - slow, and rarely needed here

        finish_notices()
        say(f"duo: error: {with_options(str(error))}")
        if isinstance(error, DeviceError):
            from duo.llama.lifeline import is_lost  # noqa: PLC0415

            if is_lost():  # a thread hangs in llama.cpp, or must not call it again
                os._exit(error.exit_status)  # nothing is buffered
        return error.exit_status
    except typer.TyperException as error:
        message = error.format_message().removesuffix(".").replace(_NO_SWITCH, "its variable must be on or off")
        say(f"duo: error: {message} (see {help_command(getattr(error, 'ctx', None))})")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        say(f"duo: error: out of memory: {str(error) or 'use a smaller context (-c), or free some'}")
        return 1
    except OSError as error:
        say(f"duo: error: cannot write the text: {error.strerror}")
        discard_stdout()
        return 1
