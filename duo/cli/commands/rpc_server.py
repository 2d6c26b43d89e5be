"""`duo rpc-server`: the devices of this machine for models on other machines."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress

from duo.cli.options.by_command import RpcServerOptions
from duo.cli.problems import RPC, build_with
from duo.cli.terminal.console import say
from duo.cli.terminal.files import blame
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.engine.cores import require_threads, usable_cores
from duo.errors import DeviceError, UsageError
from duo.link.guard import is_loopback
from duo.link.process import end_with_stdin
from duo.llama import child
from duo.llama.devices import refuses, servable_devices, serve
from duo.llama.library import supports_rpc
from duo.models.storage import cache_dir

_LOOK_S = 0.1


def rpc_server(options: RpcServerOptions) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    if not supports_rpc():
        raise DeviceError(f"llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")
    address = _address(options)
    names = [device.name for device in servable_devices(options.device)]
    if not names:
        raise UsageError("-d none: a server needs a device, such as CPU")
    if options.until_eof:
        return _serve(options, address)
    _check_free(address, options.port)
    require_threads(options.threads or usable_cores())
    # llama.cpp's server never returns and ignores signals, so it runs in a process that can be killed.
    with (
        subprocess.Popen(_command(options, names), stdin=subprocess.PIPE, start_new_session=True) as server,
        on_interrupt(server.kill) as interrupt,
    ):
        while server.poll() is None and refuses(f"{address}:{options.port}"):
            with suppress(subprocess.TimeoutExpired):
                server.wait(_LOOK_S)
        if server.poll() is None:
            say(f"duo: serving {', '.join(names)} at {address}:{options.port} (Ctrl-C to stop)")
        server.wait()
    if not interrupt.signal:
        raise DeviceError(f"the server exited with status {server.returncode}")
    return 0


def _command(options: RpcServerOptions, names: list[str]) -> list[str]:
    arguments = [f"--port={options.port}", f"--host={options.host}", f"--device={','.join(names)}"]
    arguments += ["--insecure-bind"] * options.insecure_bind + ["--cache"] * options.cache
    arguments += ["--verbose"] * options.verbose
    arguments += [f"--threads={options.threads or usable_cores()}", "--until-eof"]
    return child.call("duo.cli.main", "rpc-server", *arguments)


def _serve(options: RpcServerOptions, address: str) -> int:
    """The child process: serve until standard input is closed."""
    end_with_stdin()
    # llama.cpp logs connections to stdout.
    os.dup2(2 if options.verbose else os.open(os.devnull, os.O_WRONLY), 1)
    cache = _cache() if options.cache else None
    serve(address, options.port, servable_devices(options.device), options.threads or 1, cache)
    return 1


def _address(options: RpcServerOptions) -> str:
    """The IPv4 address to listen on. Raises UsageError."""
    if not is_loopback(options.host) and not options.insecure_bind:
        raise UsageError(
            f"--host {options.host!r}: other machines can reach this address, and llama.cpp's RPC lets them read and "
            "write the memory of this process: use an SSH tunnel to 127.0.0.1, or add --insecure-bind in a trusted "
            "network"
        )
    try:
        return socket.gethostbyname(options.host)
    except (OSError, UnicodeError):
        raise UsageError(f"--host {options.host}: unknown host, or no IPv4 address") from None


def _check_free(address: str, port: int) -> None:
    """Raise UsageError if the port cannot be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise UsageError(f"cannot listen on {address}:{port}: {error.strerror}") from None


def _cache() -> str:
    folder = cache_dir() / "rpc"
    with blame("--cache", folder, UsageError):
        folder.mkdir(parents=True, exist_ok=True)
    return f"{folder}{os.sep}"
