"""Real vocabularies, texts for them and chat templates, from the source of the installed llama.cpp."""

import fcntl
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

_PACKAGE = "llama-cpp-python"
_SEPARATOR = "\n__ggml_vocab_test__\n"  # between the texts


def fetch(config: pytest.Config) -> Path:
    """The folder with `ggml-vocab-*.gguf` and the templates, `*.jinja`. Skips the test if there is no source."""
    folder = config.cache.mkdir("llama.cpp") / version(_PACKAGE)
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes may need them, too
        if not (folder / ".complete").exists():
            try:
                _download(folder)
            except subprocess.SubprocessError as error:
                pytest.skip(f"no source of llama.cpp: {error}")
            (folder / ".complete").touch()
    return folder


def _download(folder: Path) -> None:
    """Only this package from source: what pip builds to read its name and dependencies may be a wheel."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", _PACKAGE]
    subprocess.run([*pip, "--dest", str(folder), f"{_PACKAGE}=={version(_PACKAGE)}"], timeout=300, check=True)
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        for member in opened:
            parent, _, name = member.name.partition("/vendor/llama.cpp/models/")[2].rpartition("/")
            is_wanted = name.startswith("ggml-vocab-") if not parent else parent == "templates"
            if is_wanted and (file := opened.extractfile(member)):
                (folder / name).write_bytes(file.read())
    archive.unlink()


def texts(folder: Path) -> list[str]:
    """The texts that llama.cpp tests the vocabularies with."""
    found = {text for file in folder.glob("*.inp") for text in file.read_text().split(_SEPARATOR)}
    return sorted(text for text in found if text)
