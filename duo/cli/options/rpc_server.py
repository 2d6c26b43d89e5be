"""The options of `duo rpc-server`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from duo.cli.options import declare
from duo.cli.options.declare import HelpOpt
from duo.cli.options.devices import Names, parse_names
from duo.cli.options.output import LogFileOpt, VerboseOpt
from duo.cli.options.server import SERVER
from duo.config import MAX_THREADS

option = partial(declare.option, panel=SERVER)


# fmt: off
@dataclass(frozen=True)
class RpcServerOptions:
    """The options of `duo rpc-server`."""

    port: Annotated[int, option("-p", "--port", metavar="N", min=1, max=65535, help="Port to listen on.")] = 50052
    host: Annotated[str, option(
        "-H", "--host", metavar="ADDRESS", help="Address to listen on (IPv4).")] = "127.0.0.1"
    insecure_bind: Annotated[bool, option(
        "--insecure-bind",
        help="Allow an address that other machines can reach. Each of them can then read and write the memory of this "
        "process: use it in a trusted network only.")] = False
    device: Annotated[Names | None, option(
        "-d", "-dev", "--device", metavar="NAME,...", parser=parse_names, show_default="all GPUs, or the CPU",
        help="Devices to serve, named as by duo --list-devices.")] = None
    threads: Annotated[int | None, option(
        "-t", "--threads", metavar="N", min=1, max=MAX_THREADS, show_default="all cores",
        help="Number of CPU threads.")] = None
    cache: Annotated[bool, option(
        "-c", "--cache", help="Cache large tensors in files, so that a model loads faster the next time.")] = False
    until_eof: declare.UntilEofOpt = False
    verbose: VerboseOpt = False
    log_file: LogFileOpt = None
    help: HelpOpt = False
