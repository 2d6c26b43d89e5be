"""The options of `duo rpc-server`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from duo.cli.options import declare
from duo.cli.options.declare import HelpOpt
from duo.cli.options.devices import Names, parse_names
from duo.cli.options.output import LogFileOpt, VerboseOpt

SERVER = "Server"
option = partial(declare.option, panel=SERVER)


# fmt: off
@dataclass(frozen=True)
class RpcServerOptions:
    """The options of `duo rpc-server`."""

    port: Annotated[int, option("-p", "--port", metavar="N", min=1, max=65535, help="The port.")] = 50052
    host: Annotated[str, option(
        "-H", "--host", metavar="ADDRESS", help="The address to listen on (IPv4).")] = "127.0.0.1"
    insecure_bind: Annotated[bool, option(
        "--insecure-bind",
        help="Listen on an address that other machines can reach: any of them can then read and write this process's "
        "memory. Only on a network that you trust whole.")] = False
    device: Annotated[Names | None, option(
        "-d", "-dev", "--device", metavar="NAME,...", parser=parse_names, show_default="all GPUs, or the CPU",
        help="Devices to serve, as duo --list-devices names them.")] = None
    threads: Annotated[int | None, option(
        "-t", "--threads", metavar="N", min=1, show_default="all cores", help="Threads of the CPU.")] = None
    cache: Annotated[bool, option(
        "-c", "--cache", help="Keep large tensors in files, so that a model loads faster again.")] = False
    until_eof: declare.UntilEofOpt = False
    verbose: VerboseOpt = False
    log_file: LogFileOpt = None
    help: HelpOpt = False
