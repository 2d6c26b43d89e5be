"""The command `duo`, until its parts are imported: that takes most of a second, in which Ctrl-C is expected too.

What needs no options, such as `duo --version`, is printed here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the core of `signal`, whose own import takes milliseconds
import io
import os
import sys

_N_FILES = 32  # at once, for the modules, a model and a few connections
TYPE_CHECKING = False  # as in `typing`, whose import takes milliseconds, in which Ctrl-C would be a traceback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

_PAGE = """\
duo runs a GGUF model faster: a small draft model proposes tokens, the large target verifies them. Type:
  to see it       duo demo    (two small models; the first run fetches 98 MB)
  to chat         duo chat {0}
  for one answer  duo {0} --chat -p "Why is the sky blue?"
  for a server    duo lead {0}
duo list: the models on this machine. duo tune -m FILE: which draft is the fastest. duo --help: all else."""


def main() -> None:
    """Run the command line and exit: 0, 1 for errors, 2 for usage, 128 + n after signal n.

    While there is nothing to clean up, SIGINT ends the process, as in C programs: during imports, an exception could
    be raised anywhere. See duo/cli/terminal/interrupts.py for what comes after that.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else ignored: a job in the background
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _open_streams()
    try:
        if show():
            sys.stdout.flush()
            sys.exit(0)
    except OSError:  # which run() meets again, and explains
        pass
    _check_files()
    from duo.cli.app import run  # noqa: PLC0415

    sys.exit(run())


def show() -> bool:
    """Print what `duo` or `duo --version` prints; False for another command line, or a model in the environment."""
    if sys.argv[1:] == ["--version"]:
        show_versions()
    elif sys.argv[1:] or any(map(os.environ.get, ("LLAMA_ARG_MODEL", "LLAMA_ARG_HF_REPO", "_DUO_COMPLETE"))):
        return False
    else:
        print(_page())  # noqa: T201 - the output
    return True


def _page() -> str:
    """What to type, with a model and a draft of this machine if there are some."""
    options = "-m FILE"
    try:
        from duo.cli.commands.list_models import suggest  # noqa: PLC0415 - llama.cpp, which reads the files

        options = suggest()
    except Exception:  # noqa: S110 - whatever is wrong, `duo doctor` says it, and this page is shown
        pass
    return _PAGE.format(options)


def show_versions(*, verbose: bool = False) -> None:
    """Print the versions that matter; if `verbose`, the licence and the third-party packages too."""
    from duo.llama.build import versions  # noqa: PLC0415 - not for the start page

    for name, version in versions().items():
        print(f"{name} {version}")  # noqa: T201 - the output
    if verbose:
        print("\n".join(["", *_notices()]))  # noqa: T201


def _notices() -> Iterator[str]:
    from importlib.metadata import distribution  # noqa: PLC0415 - only here

    from packaging.requirements import Requirement  # noqa: PLC0415

    duo = distribution("duo-llm")
    yield duo.read_text("licenses/LICENSE") or "Licence: see the file LICENSE"
    yield "Direct dependencies, each under its own licence:"
    for requirement in map(Requirement, duo.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            package = distribution(requirement.name)
            found = package.metadata
            licence = found["License-Expression"] or found["License"] or "see its metadata"
            yield f"{package.name} {package.version}: {licence.splitlines()[0]}"
    yield "llama.cpp and ggml, compiled into llama-cpp-python: MIT, Copyright (c) 2023-2026 The ggml authors"


def _check_files() -> None:
    """Exit if the system lets this process open so few files that modules cannot be imported."""
    import resource  # noqa: PLC0415

    if 0 <= (n_files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < _N_FILES:  # -1: any number
        sys.stderr.write(f"duo: error: only {n_files} files may be open: allow at least {_N_FILES} (ulimit -n)\n")
        sys.exit(1)


class _Lossy(io.FileIO):
    """Drops what cannot be written: messages are lost if the disk is full or the reader has left, the text is not."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            return super().write(data) or size
        except OSError:
            return size


def _open_streams() -> None:
    """Open what the parent process closed, at os.devnull, and let stderr drop what cannot be written.

    Otherwise the next file that is opened would become standard error, to which C code writes. To write to a stdout
    that was closed is an error.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        if fd == 1:
            os.close(fd)
            os.open(os.devnull, os.O_RDONLY)
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8")
    try:
        is_file = sys.stderr is None or sys.stderr.fileno() == 2
    except OSError:  # in a test
        is_file = False
    if is_file:
        encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        stream = io.BufferedWriter(_Lossy(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(stream, encoding, "backslashreplace", line_buffering=True)


if __name__ == "__main__":
    main()
