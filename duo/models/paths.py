"""The names by which a user specifies a model."""

from __future__ import annotations

import os
from pathlib import Path

from duo.config import HUB
from duo.errors import ModelError, UsageError
from duo.models.files import open_own
from duo.models.hub import resolve_hub
from duo.models.selection import HubSpec

_MAGIC = b"GGUF"


def find_model(name: str | os.PathLike[str], *, offline: bool = False) -> Path:
    """The GGUF file that `name` specifies: a path, or a str such as hf://user/repo:Q4_K_M or user/repo:Q4_K_M.

    If a str could be both, an existing file takes precedence. Raises ModelError, DownloadError or UsageError.
    """
    if isinstance(name, str) and name.startswith(HUB):
        return resolve_hub(name.removeprefix(HUB), offline)
    path = Path(name)
    if isinstance(name, str) and not path.exists() and path.suffix != ".gguf":
        try:
            HubSpec.parse(name)
        except UsageError:
            return check_gguf(path)
        return resolve_hub(name, offline)
    return check_gguf(path)


def check_gguf(path: Path) -> Path:
    """Return `path` if the file begins like a GGUF file; llama.cpp checks the rest. Raises ModelError."""
    try:
        with open_own(path) as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ModelError(f"{path}: a directory, not a GGUF file") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    if magic != _MAGIC:
        raise ModelError(f"{path}: not a GGUF file" if magic else f"{path}: an empty file")
    return path
