"""The command `duo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer

from duo.cli.commands.doctor import DoctorOptions, doctor
from duo.cli.commands.plan import PlanOptions, plan
from duo.cli.commands.trace import TraceOptions, trace
from duo.cli.options.back import BackOptions
from duo.cli.options.bench import BenchOptions
from duo.cli.options.chat import ChatOptions
from duo.cli.options.check import CheckOptions
from duo.cli.options.declare import takes
from duo.cli.options.engine import EngineOptions
from duo.cli.options.lead import LeadOptions
from duo.cli.options.rpc_server import RpcServerOptions
from duo.cli.options.run import RunOptions
from duo.cli.options.tune import TuneOptions
from duo.cli.terminal.console import say, with_options
from duo.cli.terminal.log import finish_notices
from duo.errors import DeviceError, DuoError, UsageError

COMPLETE = "_DUO_COMPLETE"  # source_bash prints what bash needs for completion, complete_bash answers it
EPILOG = "Options left out are chosen for this machine. The text goes to stdout, everything else to stderr."

Options = TypeVar("Options", bound=EngineOptions)

app = typer.Typer(add_completion=False, add_help_option=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True, epilog=EPILOG, add_help_option=False, subcommand_metavar="")
@takes(RunOptions)
def duo(context: typer.Context, options: RunOptions) -> None:
    """Write text with a target model while a draft model guesses ahead at the same time.

    The text is the target's own, token for token; the draft changes only the speed.
    """
    if context.invoked_subcommand is not None:
        _refuse_lost(context)
        return
    options = _prefer_typed(context, options)
    # Imported here so that --help and usage errors do not wait for llama.cpp.
    from duo.cli.commands import about  # noqa: PLC0415

    if options.version:
        about.show_versions()
    elif options.list_devices:
        about.show_devices(options)
    else:
        raise typer.Exit(_run(options))


@app.command("plan", add_help_option=False)
@takes(PlanOptions)
def plan_command(_: typer.Context, options: PlanOptions) -> None:
    """Predict what a draft would bring, from figures alone: for hardware that is not here."""
    raise typer.Exit(plan(options))


@app.command("tune", add_help_option=False)
@takes(TuneOptions)
def tune_command(context: typer.Context, options: TuneOptions) -> None:
    """Measure two models on this machine, say whether and how a draft helps, and keep it for later runs."""
    from duo.cli.commands.tune import tune  # noqa: PLC0415

    raise typer.Exit(tune(_prefer_typed(context, options)))


@app.command("check", add_help_option=False)
@takes(CheckOptions)
def check_command(context: typer.Context, options: CheckOptions) -> None:
    """Find out whether a draft changes what the target writes: the same texts with it and without."""
    from duo.cli.commands.check import check  # noqa: PLC0415

    raise typer.Exit(check(_prefer_typed(context, options)))


@app.command("bench", add_help_option=False)
@takes(BenchOptions)
def bench_command(context: typer.Context, options: BenchOptions) -> None:
    """Measure plain decoding, duo and llama.cpp's programs in turns: a table for these models on this machine."""
    from duo.cli.commands.bench import bench  # noqa: PLC0415

    raise typer.Exit(_until_nobody_reads(lambda: bench(_prefer_typed(context, options))))


@app.command("doctor", add_help_option=False)
@takes(DoctorOptions)
def doctor_command(_: typer.Context, options: DoctorOptions) -> None:
    """Say what this installation can do, what is wrong with it, and the command that mends it."""
    raise typer.Exit(_until_nobody_reads(lambda: doctor(options)))


@app.command("trace", add_help_option=False)
@takes(TraceOptions)
def trace_command(_: typer.Context, options: TraceOptions) -> None:
    """Say where the time of a run went, from what `duo --trace` wrote, and draw it."""
    raise typer.Exit(_until_nobody_reads(lambda: trace(options)))


@app.command("chat", add_help_option=False)
@takes(ChatOptions)
def chat_command(_: typer.Context, options: ChatOptions) -> None:
    """Talk with a model that a server runs: `duo lead`, or any other that is OpenAI-compatible."""
    from duo.cli.commands.chat import chat  # noqa: PLC0415

    raise typer.Exit(_until_nobody_reads(lambda: chat(options)))


@app.command("lead", add_help_option=False)
@takes(LeadOptions)
def lead_command(context: typer.Context, options: LeadOptions) -> None:
    """Serve a target over HTTP, as OpenAI does; drafts may come from this machine or from others."""
    from duo.cli.commands.lead import lead  # noqa: PLC0415

    raise typer.Exit(lead(_prefer_typed(context, options)))


@app.command("back", add_help_option=False)
@takes(BackOptions)
def back_command(_: typer.Context, options: BackOptions) -> None:
    """Draft for a lead on another machine, whenever it is there."""
    from duo.cli.commands.back import back  # noqa: PLC0415

    raise typer.Exit(back(options))


@app.command("rpc-server", add_help_option=False)
@takes(RpcServerOptions)
def rpc_server_command(_: typer.Context, options: RpcServerOptions) -> None:
    """Serve this machine's devices to models on other machines, with llama.cpp's RPC."""
    from duo.cli.commands.rpc_server import rpc_server  # noqa: PLC0415

    raise typer.Exit(rpc_server(options))


def main() -> None:
    """Run the command line and exit: 0, 1 for errors, 2 for usage, 128 + n after signal n."""
    if sys.stdout is None:  # closed by whoever started duo
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    if COMPLETE in os.environ:
        _prepare_completion()
    try:
        status = app(prog_name="duo", standalone_mode=False)
    except DuoError as error:
        finish_notices()
        say(f"duo: error: {_with_option(error)}")
        status = error.exit_status
        if isinstance(error, DeviceError):
            _leave_if_lost(status)
    except typer.TyperException as error:
        say(f"duo: error: {error.format_message()} (duo --help lists the options)")
        status = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except OSError as error:
        say(f"duo: error: cannot write the text: {error.strerror}")
        _discard_stdout()
        status = 1
    sys.exit(status)


# What the rooms below call a parameter is an option here.
_OPTIONS = {
    "exact": "--exact", "n_ctx": "-c", "n_threads": "-t", "n_threads_batch": "-tb", "n_batch": "-b", "n_ubatch": "-ub",
    "draft_n_max": "--draft", "draft_n_ahead": "--draft-ahead", "temperature": "--temp", "top_k": "--top-k",
    "top_p": "--top-p", "min_p": "--min-p", "typical_p": "--typical", "repeat_penalty": "--repeat-penalty",
    "repeat_last_n": "--repeat-last-n", "presence_penalty": "--presence-penalty", "stop": "-r", "max_tokens": "-n",
    "frequency_penalty": "--frequency-penalty", "logit_bias": "--logit-bias", "lead": "--lead", "tensor_split": "-ts",
    "main_gpu": "-mg", "categories": "--categories",
}  # fmt: skip


def _with_option(error: DuoError) -> str:
    """What an error says, with options for the parameter that it begins with and those that it mentions."""
    parameter = error.parameter if isinstance(error, UsageError) else ""
    return _OPTIONS.get(parameter, parameter) + with_options(str(error).removeprefix(parameter))


def _prepare_completion() -> None:
    """What Typer does with `add_completion`, without the two options, which would come first in --help."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

    completion_init()


def _leave_if_lost(status: int) -> None:
    """End at once if llama.cpp holds a thread for ever, or has lost a device: it must not be called again."""
    from duo.llama.lifeline import is_lost  # noqa: PLC0415

    if is_lost():
        os._exit(status)  # the text and the line above are written: both streams are flushed as they are written to


def _refuse_lost(context: typer.Context) -> None:
    """Options before a subcommand would go nowhere. Raises UsageError."""
    typed = [name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    if typed:
        command = context.invoked_subcommand
        raise UsageError(f"options of `duo {command}` stand after `{command}`")


def _prefer_typed(context: typer.Context, options: Options) -> Options:
    """Where one option was typed and one that excludes it comes from the environment, the typed one is meant."""
    for names in (("model", "hf_repo"), ("model_draft", "hf_repo_draft")):
        given = [name for name in names if getattr(options, name) is not None]
        inherited = [name for name in given if str(context.get_parameter_source(name)).endswith("ENVIRONMENT")]
        if len(given) == 2 and len(inherited) == 1:
            nothing: dict[str, Any] = {inherited[0]: None}
            options = replace(options, **nothing)
    return options


def _run(options: RunOptions) -> int:
    """Run `duo` without a subcommand."""
    from duo.cli.commands import run  # noqa: PLC0415

    return _until_nobody_reads(lambda: run.run(options))


def _until_nobody_reads(act: Callable[[], int]) -> int:
    """Do it. A reader who has had enough is no error."""
    try:
        status = act()
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 0
    return status


def _discard_stdout() -> None:
    """Python would try once more to write what is left when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
