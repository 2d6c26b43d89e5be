"""What this installation is and can compute on."""

from __future__ import annotations

from duo.llama import library
from duo.llama.devices import list_devices


def show_versions() -> None:
    """Print the versions that matter."""
    for name, version in library.versions().items():
        print(f"{name} {version}")  # noqa: T201 - this is what was asked for


def show_devices() -> None:
    """Print the devices of this build."""
    for device in list_devices():
        total, free = device.memory_total / 2**20, device.memory_free / 2**20
        print(f"{device.name}: {device.description} ({total:.0f} MiB, {free:.0f} MiB free)")  # noqa: T201
