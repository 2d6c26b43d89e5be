"""`duo rpc-server`: the devices of this machine for models on other machines."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from duo.cli.commands.options import RpcServerOptions
from duo.cli.installation import require_rpc
from duo.cli.terminal.console import blame, note, send_log
from duo.cli.terminal.interrupts import on_interrupt
from duo.engine.cores import require_threads, usable_cores
from duo.errors import DeviceError, UsageError
from duo.http.guard import is_loopback
from duo.llama.build import CPU, child_command, end_with_stdin
from duo.llama.devices import Device, find_devices, gpus, refuses, serve
from duo.models.storage import cache_dir

_LOOK_S = 0.1


def rpc_server(options: RpcServerOptions) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status. Raises DuoError."""
    send_log(options)
    require_rpc()
    chosen = options.device if options.device is not None else [gpu.name for gpu in gpus()] or [CPU]
    devices = find_devices(chosen, cpu=True)
    if not devices:
        raise UsageError("-d none: a server needs a device, such as CPU")
    address = _address(options)  # last: whether the port is free depends on the moment
    n_threads = options.threads or usable_cores()
    if options.until_eof:
        _serve(options, address, devices, n_threads)
        return 1
    require_threads(n_threads)
    # llama.cpp's server never returns and ignores signals, so it runs in a process that can be killed.
    command = child_command("duo.cli.main", *sys.argv[1:], "--until-eof", "--log-file", os.devnull)
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as server,
        on_interrupt(server.kill) as interrupt,
    ):
        while server.poll() is None and refuses(address, options.port):
            with suppress(subprocess.TimeoutExpired):
                server.wait(_LOOK_S)
        if server.poll() is None:
            names = ", ".join(device.name for device in devices)
            note(f"serving {names} at {address}:{options.port} (Ctrl-C to stop)")
        server.wait()
    if not interrupt.signal:
        raise DeviceError(f"the server exited with status {server.returncode}")
    return 0


def _serve(options: RpcServerOptions, address: str, devices: Sequence[Device], n_threads: int) -> None:
    """Serve until standard input is closed; returns only on failure."""
    end_with_stdin()
    cache = cache_dir() / "rpc"
    if options.cache:
        with blame("--cache", cache, UsageError):
            cache.mkdir(parents=True, exist_ok=True)
    # llama.cpp logs connections to stdout.
    os.dup2(2 if options.verbose else os.open(os.devnull, os.O_WRONLY), 1)
    serve(address, options.port, devices, n_threads, f"{cache}{os.sep}" if options.cache else None)


def _address(options: RpcServerOptions) -> str:
    """The IPv4 address to listen on. Raises UsageError, also if the port cannot be listened on."""
    if not is_loopback(options.host) and not options.insecure_bind:
        raise UsageError(
            f"--host {options.host!r}: other machines can reach this address, and llama.cpp's RPC lets them read and "
            "write the memory of this process: use an SSH tunnel to 127.0.0.1, or add --insecure-bind in a trusted "
            "network"
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            address = socket.gethostbyname(options.host)
            probe.bind((address, options.port))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "unknown host, or no IPv4 address"
            raise UsageError(f"cannot listen on {options.host}:{options.port}: {reason}") from None
    return address
