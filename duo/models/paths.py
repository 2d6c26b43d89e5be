"""GGUF files that the user named."""

from __future__ import annotations

from pathlib import Path

from duo.errors import ModelError

_MAGIC = b"GGUF"


def check_gguf(path: Path) -> Path:
    """Return `path` if a GGUF file begins there; llama.cpp judges the rest.

    Raises ModelError when there is nothing, a directory, or another kind of file.
    """
    try:
        with path.open("rb") as file:
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
