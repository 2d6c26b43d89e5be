"""The commands, one file each: it reads its options, calls one module below `cli/` and prints the result."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from duo.cli.commands import options


class Command(NamedTuple):
    """A command."""

    options: Any  # with their defaults
    function: str  # in a module of this package; takes the options and returns the exit status
    help: str
    closable: bool = True  # whether it ends with status 0 if the reader of stdout closes it


# fmt: off
COMMANDS = {
    "demo": Command(options.DemoOptions(), "run.demo",
        "Run two small models (98 MB to fetch, once), and compare the speed with and without the draft."),
    "plan": Command(options.PlanOptions(), "plan.plan",
        "Predict the speed with a draft from decode times, for any hardware."),
    "list": Command(options.ListOptions(), "list_models.list_models",
        "List the models in this folder and in the caches, of duo and Hugging Face, and which can draft for which."),
    "memory": Command(options.MemoryOptions(), "memory.memory",
        "Build a memory of your own texts, which a model looks up while it writes (--memory)."),
    "tune": Command(options.TuneOptions(), "tune.tune",
        "Measure whether a draft pays on this machine, and save the result for later runs; without -md, which draft."),
    "check": Command(options.CheckOptions(), "check.check",
        "Check that a draft does not change the text, by generating the same texts with and without it.",
        closable=False),
    "bench": Command(options.BenchOptions(), "bench.bench",
        "Benchmark duo and llama.cpp's programs on this machine, with these models."),
    "doctor": Command(options.DoctorOptions(), "doctor.doctor",
        "Describe this installation, its problems, and the commands that fix them."),
    "chat": Command(options.ChatOptions(), "chat.chat",
        "Chat with a model in this process, or on an OpenAI-compatible server such as `duo lead`."),
    "lead": Command(options.LeadOptions(), "lead.lead",
        "Serve a target over an OpenAI-compatible HTTP API, with a local draft or remote ones.", closable=False),
    "batch": Command(options.BatchOptions(), "batch.batch",
        "Answer a file of requests in OpenAI's batch format, several at once; go on where this was interrupted.",
        closable=False),
    "back": Command(options.BackOptions(), "back.back",
        "Run a remote draft for a lead on another machine; reconnect whenever the lead is available.",
        closable=False),
    "rpc-server": Command(options.RpcServerOptions(), "rpc_server.rpc_server",
        "Serve this machine's devices to models on other machines, over llama.cpp's RPC.", closable=False),
}
# fmt: on


def function(path: str) -> Callable[[Any], int]:
    """The function of a command, which is imported when it is used."""
    module, name = path.split(".")
    found: Callable[[Any], int] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
