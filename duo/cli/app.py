"""The commands, and how they end. What a command needs, its options too, is imported when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import typer

from duo.cli.about import is_start, show_start, show_versions
from duo.cli.arguments import Command, Commands, help_command
from duo.cli.options.by_command import RunOptions
from duo.cli.parameters import comes_from, takes
from duo.cli.terminal.console import discard_stdout, say
from duo.cli.terminal.interrupts import interrupts_raise
from duo.cli.terminal.option_names import with_options
from duo.errors import DeviceError, DuoError, UsageError
from duo.llama import spin_briefly

COMPLETE = "_DUO_COMPLETE"  # source_bash: print the completion script of bash; complete_bash: print completions
EPILOG = "Defaults depend on the machine and the models. The text goes to stdout, everything else to stderr."

T = TypeVar("T")

_new_app = partial(
    typer.Typer, add_completion=False, add_help_option=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


class Declaration(NamedTuple):
    """A command."""

    options: str  # module and class in duo.cli.options
    function: str  # module and function in duo.cli; takes the options and returns the exit status
    help: str
    closable: bool = True  # whether it ends with status 0 if the reader of stdout closes it

    def defaults(self) -> Any:
        """Its options, with their defaults."""
        return _named("duo.cli.options", self.options)()

    def call(self) -> Callable[[Any], int]:
        """Its function."""
        found: Callable[[Any], int] = _named("duo.cli", self.function)
        return found


# fmt: off
COMMANDS = {
    "demo": Declaration("by_command.DemoOptions", "commands.run.demo",
        "Run two small models, fetched on first use (360 MB), and compare the speed with and without the draft."),
    "plan": Declaration("by_command.PlanOptions", "commands.plan.plan",
        "Predict the speed with a draft from decode times, for any hardware."),
    "list": Declaration("by_command.ListOptions", "commands.list_models.list_models",
        "List the models in the caches of duo and Hugging Face, and which can draft for which."),
    "tune": Declaration("by_command.TuneOptions", "commands.tune.tune",
        "Measure whether a draft pays on this machine, and save the result for later runs; without -md, which draft."),
    "check": Declaration("by_command.CheckOptions", "commands.check.check",
        "Check that a draft does not change the text: generate the same texts with and without it.", closable=False),
    "bench": Declaration("by_command.BenchOptions", "commands.bench.bench",
        "Benchmark plain decoding, duo and llama.cpp's programs with these models on this machine."),
    "doctor": Declaration("by_command.DoctorOptions", "commands.doctor.doctor",
        "Describe this installation, its problems, and the commands that fix them."),
    "chat": Declaration("by_command.ChatOptions", "commands.chat.chat",
        "Chat with a model in this process, or on an OpenAI-compatible server such as `duo lead`."),
    "lead": Declaration("by_command.LeadOptions", "commands.lead.lead",
        "Serve a target over an OpenAI-compatible HTTP API, with a local draft or remote ones.", closable=False),
    "back": Declaration("by_command.BackOptions", "commands.back.back",
        "Run a remote draft for a lead on another machine; reconnect whenever the lead is available.",
        closable=False),
    "rpc-server": Declaration("by_command.RpcServerOptions", "commands.rpc_server.rpc_server",
        "Serve the devices of this machine to models on other machines, over llama.cpp's RPC.", closable=False),
}
# fmt: on


def _named(package: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"{package}.{module}"), name)


class _Group(Commands):
    """A group whose commands have no options until one is used: declaring those of all takes a third of start-up."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` name; for Typer. Raises UsageError."""
        name = args[0]
        if name in COMMANDS and not self.commands[name].params:
            self.commands[name] = _declare(name)
        elif name not in self.commands and not ctx.resilient_parsing:
            from duo.cli.other_words import unknown_command  # noqa: PLC0415 - only here

            raise UsageError(unknown_command(name, args[1:], list(self.commands)))
        return super().resolve_command(ctx, args)

    def owners(self, name: str) -> list[str]:
        """The commands that have an option of this name: only `duo` if it has it."""
        if any(name in option.opts for option in self.params):
            return ["duo"]
        declared = ((one, _declare(one)) for one in COMMANDS)
        return [f"duo {one}" for one, command in declared if any(name in option.opts for option in command.params)]


def _declare(name: str) -> Any:
    """The command with its options."""
    said = COMMANDS[name]

    def call(_: typer.Context, options: Any) -> None:
        if name == "back" or (name == "lead" and not options.has_draft):
            spin_briefly()  # the other one may run on this machine, too
        raise typer.Exit(_finish(said.call(), options, closable=said.closable))

    one = _new_app()
    one.command(name, cls=Command, help=said.help, add_help_option=False)(takes(said.defaults(), name)(call))
    return typer.main.get_command(one)


app = _new_app(cls=_Group)
for _name, _said in COMMANDS.items():  # for the list of commands
    app.command(_name, help=_said.help, add_help_option=False)(lambda: None)


def duo(context: typer.Context, options: Any) -> None:
    """Generate text with a large target model, faster: a small draft model runs concurrently.

    The text is the target's own, token for token; the draft changes only the speed.
    """
    if context.invoked_subcommand is None:
        raise typer.Exit(_finish(_chosen(options), options))
    if any(comes_from(context, name, "COMMANDLINE") for name in context.params):
        command = context.invoked_subcommand
        raise UsageError(f"options of `duo {command}` must follow `{command}`")


_whole = app.callback(
    invoke_without_command=True, epilog=EPILOG, add_help_option=False, subcommand_metavar="", help=duo.__doc__
)
_whole(takes(RunOptions(), "duo")(duo))


def _chosen(options: Any) -> Callable[[Any], int]:
    """What `duo` without a subcommand does."""
    if is_start():
        return lambda _: show_start()
    if options.version:
        return lambda options: show_versions(verbose=options.verbose)
    if options.list_devices:
        function = "devices.show_devices"
    elif options.conversation and not options.single_turn:
        function = "commands.chat.converse"
    else:
        function = "commands.run.run"
        if options.engine.back_port is not None and not options.has_draft:
            spin_briefly()  # a remote draft may run on this machine, too
    found: Callable[[Any], int] = _named("duo.cli", function)
    return found


def _finish(command: Callable[[T], int], options: T, *, closable: bool = True) -> int:
    """Run a command. Returns its exit status: 0 if it is `closable` and the reader of stdout closes it."""
    try:
        with interrupts_raise():
            status = command(options)
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        if not closable:
            raise
        discard_stdout()
        return 0


def run() -> int:
    """Run the command line. Returns the exit status: 0, 1 for errors, 2 for usage, 128 + n after signal n."""
    if COMPLETE in os.environ:
        # As Typer's add_completion, without its two options, which would be listed first in --help.
        from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

        completion_init()
    try:
        status: int = app(_arguments(sys.argv[1:]), prog_name="duo", standalone_mode=False)
    except DuoError as error:
        from duo.cli.terminal.log import finish_notices  # noqa: PLC0415 - slow, and rarely needed here

        finish_notices()
        say(f"duo: error: {with_options(str(error), error.parameter if isinstance(error, UsageError) else '')}")
        status = error.exit_status
        if isinstance(error, DeviceError):
            from duo.llama.lifeline import is_lost  # noqa: PLC0415

            if is_lost():  # a thread hangs in llama.cpp, or must not call it again
                os._exit(status)  # nothing is buffered
    except typer.TyperException as error:
        say(f"duo: error: {error.format_message().removesuffix('.')} (see {help_command(getattr(error, 'ctx', None))})")
        status = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except OSError as error:
        say(f"duo: error: cannot write the text: {error.strerror}")
        discard_stdout()
        status = 1
    return status


def _arguments(typed: list[str]) -> list[str]:
    """The arguments: `duo help`, `duo help lead` and `duo version` are what other programs have for the options."""
    if typed[:1] == ["help"]:
        return [*typed[1:], "--help"]
    return ["--version"] if typed == ["version"] else typed
