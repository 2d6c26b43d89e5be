"""`duo --version` and `duo --list-devices`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

from duo.cli.devices import check_rpc
from duo.cli.options.run import RunOptions
from duo.llama import library
from duo.llama.devices import list_devices
from duo.llama.rpc import add_server

PACKAGE = "duo-llm"


def show_versions(*, verbose: bool) -> int:
    """Print the versions that matter; if `verbose`, the licence and the third-party packages too."""
    for name, version in library.versions().items():
        print(f"{name} {version}")  # noqa: T201 - the output
    if verbose:
        print("\n".join(["", *_notices()]))  # noqa: T201
    return 0


def _notices() -> Iterator[str]:
    try:
        duo = distribution(PACKAGE)
    except PackageNotFoundError:
        yield "Licence and notices: duo is not installed, see the file LICENSE."
        return
    yield from (duo.read_text("licenses/LICENSE") or f"Licence: {_licence(duo)}").splitlines()
    yield ""
    yield "Direct dependencies, each under its own licence:"
    for requirement in map(Requirement, duo.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                package = distribution(requirement.name)
            except PackageNotFoundError:
                continue
            yield f"{package.name} {package.version}: {_licence(package)}"
    yield "llama.cpp and ggml, compiled into llama-cpp-python: MIT, Copyright (c) 2023-2026 The ggml authors"


def _licence(package: Distribution) -> str:
    metadata = package.metadata
    classifiers = (value.rpartition(" :: ")[2] for value in metadata.get_all("Classifier", []) if "License ::" in value)
    found = (*metadata.get_all("License-Expression", []), *classifiers, *metadata.get_all("License", []))
    return next(iter(found), "unknown")


def show_devices(options: RunOptions) -> int:
    """Print the devices of this machine and of --rpc and --rpcd. Raises DeviceError."""
    check_rpc(options.rpc or options.rpc_draft)
    for server in (*(options.rpc or ()), *(options.rpc_draft or ())):
        add_server(server, options.rpc_timeout)
    for device in list_devices():
        free, total = device.memory
        print(f"{device.name}: {device.description} ({total / 2**20:.0f} MiB, {free / 2**20:.0f} MiB free)")  # noqa: T201
    return 0
