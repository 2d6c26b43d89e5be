"""The commands, and how they end. What a command needs, its options too, is imported when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import typer

from duo.cli import commands, options
from duo.cli.about import is_start, show_start, show_versions
from duo.cli.arguments import Command, Commands, help_command
from duo.cli.options.declare import comes_from, takes
from duo.cli.options.run import RunOptions
from duo.cli.terminal.console import discard_stdout, say, with_options
from duo.cli.terminal.interrupts import interrupts_raise
from duo.errors import DeviceError, DuoError, UsageError
from duo.llama import spin_briefly

COMPLETE = "_DUO_COMPLETE"  # source_bash: print the completion script of bash; complete_bash: print completions
EPILOG = "Defaults depend on the machine and the models. The text goes to stdout, everything else to stderr."

T = TypeVar("T")

_new_app = partial(
    typer.Typer, add_completion=False, add_help_option=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)
_DECLARE: dict[str, Callable[[], Any]] = {}  # functions that return a command with its options, by name


class _Group(Commands):
    """A group whose commands have no options until one is used: declaring those of all takes a third of start-up."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` name; for Typer. Raises UsageError."""
        name = args[0]
        if name in _DECLARE and not self.commands[name].params:
            self.commands[name] = _DECLARE[name]()
        elif name not in self.commands and not ctx.resilient_parsing:
            from duo.cli.other_words import unknown_command  # noqa: PLC0415 - only here

            raise UsageError(unknown_command(name, args[1:], list(self.commands)))
        return super().resolve_command(ctx, args)

    def owners(self, name: str) -> list[str]:
        """The commands that have an option of this name: only `duo` if it has it."""
        if any(name in option.opts for option in self.params):
            return ["duo"]
        declared = ((one, _DECLARE[one]()) for one in _DECLARE)
        return [f"duo {one}" for one, command in declared if any(name in option.opts for option in command.params)]


app = _new_app(cls=_Group)


@app.callback(invoke_without_command=True, epilog=EPILOG, add_help_option=False, subcommand_metavar="")
@takes(RunOptions)
def duo(context: typer.Context, options: RunOptions) -> None:
    """Generate text with a large target model, faster: a small draft model runs concurrently.

    The text is the target's own, token for token; the draft changes only the speed.
    """
    if context.invoked_subcommand is None:
        raise typer.Exit(_finish((lambda _: show_start()) if is_start() else _chosen(options), options))
    if any(comes_from(context, name, "COMMANDLINE") for name in context.params):
        command = context.invoked_subcommand
        raise UsageError(f"options of `duo {command}` must follow `{command}`")


def _chosen(options: RunOptions) -> Callable[[RunOptions], int]:
    if options.version:
        return lambda options: show_versions(verbose=options.verbose)
    if options.list_devices:
        from duo.cli.devices import show_devices  # noqa: PLC0415 - it loads llama.cpp

        return show_devices
    if options.conversation and not options.single_turn:
        return commands.chat.converse
    return _run


def _run(options: RunOptions) -> int:
    if options.back_port is not None:
        _share_cores(options)
    return commands.run.run(options)


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


def _command(
    name: str,
    options: Callable[[], type[T]],
    find: Callable[[], Callable[[T], int]],
    text: str,
    *,
    closable: bool = True,
) -> None:
    """Register the command whose options and function these return; `text` is its help, `closable` as for _finish()."""

    def call(context: typer.Context, given: T) -> None:
        if name == "chat":  # a server decides what the command line does not
            typed = frozenset(field for field in context.params if comes_from(context, field, "COMMANDLINE"))
            given = replace(given, given=typed)  # type: ignore[type-var]
        raise typer.Exit(_finish(find(), given, closable=closable))

    def declare() -> Any:
        one = _new_app()
        one.command(name, cls=Command, help=text, add_help_option=False)(takes(options())(call))
        return typer.main.get_command(one)

    _DECLARE[name] = declare
    app.command(name, help=text, add_help_option=False)(lambda: None)  # for the list of commands


def _lead(options: Any) -> int:
    _share_cores(options)
    return commands.lead.lead(options)


def _share_cores(options: Any) -> None:
    """A remote draft may run on this machine, too."""
    if not options.has_draft:
        spin_briefly()


def _back(options: Any) -> int:
    spin_briefly()
    return commands.back.back(options)


# fmt: off
_command("demo", lambda: options.demo.DemoOptions, lambda: _run,
         "Run two small models, fetched on first use (360 MB), and compare the speed with and without the draft.")
_command("plan", lambda: options.plan.PlanOptions, lambda: commands.plan.plan,
         "Predict the speed with a draft from decode times, for any hardware.")
_command("list", lambda: options.list_models.ListOptions, lambda: commands.list_models.list_models,
         "List the models in the caches of duo and Hugging Face, and which can draft for which.")
_command("tune", lambda: options.tune.TuneOptions, lambda: commands.tune.tune,
         "Measure whether a draft pays on this machine, and save the result for later runs; without -md, which draft.")
_command("check", lambda: options.check.CheckOptions, lambda: commands.check.check,
         "Check that a draft does not change the text: generate the same texts with and without it.",
         closable=False)
_command("bench", lambda: options.bench.BenchOptions, lambda: commands.bench.bench,
         "Benchmark plain decoding, duo and llama.cpp's programs with these models on this machine.")
_command("doctor", lambda: options.doctor.DoctorOptions, lambda: commands.doctor.doctor,
         "Describe this installation, its problems, and the commands that fix them.")
_command("chat", lambda: options.chat.ChatOptions, lambda: commands.chat.chat,
         "Chat with a model in this process, or on an OpenAI-compatible server such as `duo lead`.")
_command("lead", lambda: options.lead.LeadOptions, lambda: _lead,
         "Serve a target over an OpenAI-compatible HTTP API, with a local draft or remote ones.", closable=False)
_command("back", lambda: options.back.BackOptions, lambda: _back,
         "Run a remote draft for a lead on another machine; reconnect whenever the lead is available.",
         closable=False)
_command("rpc-server", lambda: options.rpc_server.RpcServerOptions, lambda: commands.rpc_server.rpc_server,
         "Serve the devices of this machine to models on other machines, over llama.cpp's RPC.", closable=False)
# fmt: on


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
        say(f"duo: error: {_explain(error)} (see {help_command(getattr(error, 'ctx', None))})")
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


def _explain(error: typer.TyperException) -> str:
    """What is wrong with an argument, in one line."""
    message = error.format_message().replace("Value error, ", "").removesuffix(".")
    about, found, kind = message.partition("Input should be a valid ")
    wrong = [one["input"] for one in getattr(error.__cause__, "errors", list)()]
    if not found or not wrong:
        return message
    return f"{about}{wrong[0]!r} is not {'an integer' if kind.startswith('integer') else 'a number'}"
