"""`duo --list-devices`."""

from __future__ import annotations

from duo.cli.devices import check_rpc, no_gpu_found
from duo.cli.options.run import RunOptions
from duo.cli.terminal.console import warn
from duo.llama.devices import list_devices
from duo.llama.rpc import add_server


def show_devices(options: RunOptions) -> int:
    """Print the devices of this machine and of --rpc and --rpcd. Warns if a GPU is expected but missing.

    Raises DeviceError.
    """
    check_rpc(options.rpc or options.rpc_draft)
    for server in (*(options.rpc or ()), *(options.rpc_draft or ())):
        add_server(server, options.rpc_timeout)
    for device in list_devices():
        free, total = device.memory
        print(f"{device.name}: {device.description} ({total / 2**20:.0f} MiB, {free / 2**20:.0f} MiB free)")  # noqa: T201
    if why := no_gpu_found():
        warn(why)
    return 0
