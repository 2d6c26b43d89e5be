"""The options of `duo rpc-server`, apart from it so that --help does not wait for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duo.cli import device_options as dev
from duo.cli import options as opt
from duo.cli.declare import option
from duo.cli.until_eof import UntilEofOpt

SERVER = "Server"

PortOpt = Annotated[int, option("-p", "--port", panel=SERVER, metavar="N", min=1, max=65535, help="The port.")]
HostOpt = Annotated[
    str, option("-H", "--host", panel=SERVER, metavar="ADDRESS", help="The address to listen on (IPv4).")
]
InsecureOpt = Annotated[
    bool,
    option("--insecure-bind", panel=SERVER,
           help="Listen on an address that other machines can reach: any of them can then read and write this "
           "process's memory. Only on a network that you trust whole."),
]  # fmt: skip
DeviceOpt = Annotated[
    dev.Names | None,
    option("-d", "-dev", "--device", panel=SERVER, metavar="NAME,...", parser=dev.parse_names,
           show_default="all GPUs, or the CPU", help="Devices to serve, as duo --list-devices names them."),
]  # fmt: skip
ThreadsOpt = Annotated[
    int | None,
    option("-t", "--threads", panel=SERVER, metavar="N", min=1, show_default="all cores", help="Threads of the CPU."),
]
CacheOpt = Annotated[
    bool, option("-c", "--cache", panel=SERVER, help="Keep large tensors in files, so that a model loads faster again.")
]


@dataclass(frozen=True, slots=True)
class RpcServerOptions:
    """The options of `duo rpc-server`."""

    port: PortOpt = 50052
    host: HostOpt = "127.0.0.1"
    insecure_bind: InsecureOpt = False
    device: DeviceOpt = None
    threads: ThreadsOpt = None
    cache: CacheOpt = False
    until_eof: UntilEofOpt = False
    verbose: opt.VerboseOpt = False
    log_file: opt.LogFileOpt = None
    help: opt.HelpOpt = False
