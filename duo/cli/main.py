"""The command `duo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

from duo.cli import commands
from duo.cli.options.back import BackOptions
from duo.cli.options.bench import BenchOptions
from duo.cli.options.chat import ChatOptions
from duo.cli.options.check import CheckOptions
from duo.cli.options.declare import comes_from, takes
from duo.cli.options.doctor import DoctorOptions
from duo.cli.options.lead import LeadOptions
from duo.cli.options.plan import PlanOptions
from duo.cli.options.rpc_server import RpcServerOptions
from duo.cli.options.run import RunOptions
from duo.cli.options.trace import TraceOptions
from duo.cli.options.tune import TuneOptions
from duo.cli.terminal.console import say, with_options
from duo.cli.terminal.log import finish_notices
from duo.errors import DeviceError, DuoError, UsageError

COMPLETE = "_DUO_COMPLETE"  # source_bash: print the completion script of bash; complete_bash: print completions
EPILOG = "Defaults depend on the machine and the models. The text goes to stdout, everything else to stderr."

T = TypeVar("T")

app = typer.Typer(add_completion=False, add_help_option=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, epilog=EPILOG, add_help_option=False, subcommand_metavar="")
@takes(RunOptions)
def duo(context: typer.Context, options: RunOptions) -> None:
    """Generate text with a large target model, faster: a small draft model runs concurrently.

    The text is the target's own, token for token; the draft changes only the speed.
    """
    if context.invoked_subcommand is None:
        _finish(_run, options)
    if any(comes_from(context, name, "COMMANDLINE") for name in context.params):
        command = context.invoked_subcommand
        raise UsageError(f"options of `duo {command}` must follow `{command}`")


def _run(options: RunOptions) -> int:
    if options.version:
        return commands.about.show_versions(verbose=options.verbose)
    return commands.about.show_devices(options) if options.list_devices else commands.run.run(options)


def _finish(command: Callable[[T], int], options: T, *, closable: bool = True) -> None:
    """Run a command and raise typer.Exit with its status: 0 if it is `closable` and the reader of stdout closes it."""
    try:
        status = command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        if not closable:
            raise
        _discard_stdout()
        status = 0
    raise typer.Exit(status)


def _command(
    name: str, options: type[T], find: Callable[[], Callable[[T], int]], text: str, *, closable: bool = True
) -> None:
    """Register the command that `find` imports; `text` is its help, `closable` as for _finish()."""

    def call(_: typer.Context, given: T) -> None:
        _finish(find(), given, closable=closable)

    app.command(name, help=text, add_help_option=False)(takes(options)(call))


# fmt: off
_command("plan", PlanOptions, lambda: commands.plan.plan,
         "Predict the speed with a draft from decode times, for any hardware.")
_command("tune", TuneOptions, lambda: commands.tune.tune,
         "Measure two models on this machine, report whether a draft pays, and save the result for later runs.",
         closable=False)
_command("check", CheckOptions, lambda: commands.check.check,
         "Check that a draft does not change the text: generate the same texts with and without it.",
         closable=False)
_command("bench", BenchOptions, lambda: commands.bench.bench,
         "Benchmark plain decoding, duo and llama.cpp's programs with these models on this machine.")
_command("doctor", DoctorOptions, lambda: commands.doctor.doctor,
         "Describe this installation, its problems, and the commands that fix them.")
_command("trace", TraceOptions, lambda: commands.trace.trace,
         "Summarize where the time of a run went, from the file of `duo --trace`, and plot it.")
_command("chat", ChatOptions, lambda: commands.chat.chat,
         "Chat with a model on an OpenAI-compatible server, such as `duo lead`.")
_command("lead", LeadOptions, lambda: commands.lead.lead,
         "Serve a target over an OpenAI-compatible HTTP API, with a local draft or remote ones.", closable=False)
_command("back", BackOptions, lambda: commands.back.back,
         "Run a remote draft for a lead on another machine; reconnect whenever the lead is available.",
         closable=False)
_command("rpc-server", RpcServerOptions, lambda: commands.rpc_server.rpc_server,
         "Serve the devices of this machine to models on other machines, over llama.cpp's RPC.", closable=False)
# fmt: on


def main() -> None:
    """Run the command line and exit: 0, 1 for errors, 2 for usage, 128 + n after signal n."""
    if sys.stdout is None:  # closed by the parent process
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process exits
    if COMPLETE in os.environ:
        # As Typer's add_completion, without its two options, which would be listed first in --help.
        from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

        completion_init()
    try:
        status = app(prog_name="duo", standalone_mode=False)
    except DuoError as error:
        finish_notices()
        say(f"duo: error: {with_options(str(error), error.parameter if isinstance(error, UsageError) else '')}")
        status = error.exit_status
        if isinstance(error, DeviceError):
            from duo.llama.lifeline import is_lost  # noqa: PLC0415

            if is_lost():  # a thread hangs in llama.cpp, or must not call it again
                os._exit(status)  # nothing is buffered
    except typer.TyperException as error:
        message = error.format_message().replace("Value error, ", "").removesuffix(".")
        say(f"duo: error: {message} (see {_help(error)})")
        status = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except OSError as error:
        say(f"duo: error: cannot write the text: {error.strerror}")
        _discard_stdout()
        status = 1
    sys.exit(status)


def _help(error: typer.TyperException) -> str:
    """The command that lists the options of the command that was used wrongly."""
    path = getattr(getattr(error, "ctx", None), "command_path", "duo")
    return "duo --help-all" if path == "duo" else f"{path} --help"


def _discard_stdout() -> None:
    """Keep Python from flushing stdout again at exit, which would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
