"""Real vocabularies and the texts that llama.cpp tests them with, from the source of the installed version."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

_PACKAGE = "llama-cpp-python"
_FOLDER = "vendor/llama.cpp/models/"  # in the archive, after a first folder
_SEPARATOR = "\n__ggml_vocab_test__\n"  # between the texts
_DOWNLOAD_S = 300.0


class Unavailable(Exception):
    """The source cannot be downloaded."""


def fetch(cache: Path) -> Path:
    """The folder with the vocabularies, `ggml-vocab-*.gguf`, within `cache`. Raises Unavailable."""
    folder = cache / version(_PACKAGE)
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes may need them, too
        if not (folder / ".complete").exists():
            _download(folder)
            (folder / ".complete").touch()
    return folder


def _download(folder: Path) -> None:
    """Only this package from source: what pip builds to read its name and dependencies may be a wheel."""
    source = f"{_PACKAGE}=={version(_PACKAGE)}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", _PACKAGE]
    try:
        done = subprocess.run(
            [*pip, "--dest", str(folder), source], capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not download {source} within {_DOWNLOAD_S:.0f} s") from None
    if done.returncode:
        raise Unavailable(f"pip cannot download {source}: {done.stderr.strip().splitlines()[-1:]}")
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        for member in opened:
            name = member.name.partition("/")[2].removeprefix(_FOLDER)
            if name.startswith("ggml-vocab-") and "/" not in name and (file := opened.extractfile(member)):
                (folder / name).write_bytes(file.read())
    archive.unlink()


def texts(folder: Path) -> list[str]:
    """The texts that llama.cpp tests the vocabularies with."""
    found = {text for file in folder.glob("*.inp") for text in file.read_text().split(_SEPARATOR)}
    return sorted(text for text in found if text)
