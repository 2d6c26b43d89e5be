"""`duo --version`. It imports little, so that it is quick."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from duo.llama.build import versions

PACKAGE = "duo-llm"


def show_versions(*, verbose: bool) -> int:
    """Print the versions that matter; if `verbose`, the licence and the third-party packages too."""
    for name, version in versions().items():
        print(f"{name} {version}")  # noqa: T201 - the output
    if verbose:
        print("\n".join(["", *_notices()]))  # noqa: T201
    return 0


def _notices() -> Iterator[str]:
    from packaging.requirements import Requirement  # noqa: PLC0415 - only here

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
