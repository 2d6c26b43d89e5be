"""Files that may be drafts for a target: those that are given, and those in the caches of models."""

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from duo.config import ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama.gguf_header import GgufHeader, check_text_model
from duo.models.hub import quant_of
from duo.models.storage import cache_dir

_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.IGNORECASE)  # of a split model
_MAX_SHARE = 0.5  # bytes of a draft, relative to the target's: a larger one is hardly faster


def find_candidates(given: Sequence[Path], target: Path) -> list[Path]:
    """What may be a draft for `target`, of what find_models() finds; no file is opened: see check_draft()."""
    found = find_models(given, _MAX_SHARE * size(target))
    return [path for path in found if os.path.realpath(path) != os.path.realpath(target)]


def find_models(given: Sequence[Path] = (), most: float = math.inf) -> list[Path]:
    """The files given, and those of at most `most` bytes below folders given and the caches, the smallest first."""
    unique: dict[str, Path] = {}  # a file may have several links
    for path in (*given, *model_folders()):
        for file in _below(path, most) if path.is_dir() else [path]:
            unique.setdefault(os.path.realpath(file), file)
    return list(unique.values())


def is_small_enough(n_bytes: int, target_bytes: int) -> bool:
    """Whether a model of `n_bytes` may be a draft for a target of `target_bytes`."""
    return n_bytes <= _MAX_SHARE * target_bytes


def size(path: Path) -> int:
    """Bytes of all files of a model, as far as they exist."""
    return sum(part.stat().st_size for part in ModelConfig(path).shards if part.is_file())


def hub_name(path: Path) -> str | None:
    """What -hf calls a file in Hugging Face's cache, such as user/repo:Q4_K_M; None for any other file."""
    folder = re.search(r"(?:^|/)models--([^/]*)/", path.as_posix())
    quant = quant_of(path.name)
    return f"{folder[1].replace('--', '/', 1)}:{quant}" if folder and quant else None


def check_draft(path: Path, target: Path) -> None:
    """Raise ModelError if the file is no text model, or too large to be a draft for `target`."""
    own, targets = size(path), size(target)
    if not is_small_enough(own, targets):
        raise ModelError(f"{path}: {own / 1e6:.0f} MB, more than half of the target's {targets / 1e6:.0f} MB")
    check_text_model(GgufHeader(path))
    check_parts(path)


def check_parts(path: Path) -> None:
    """Raise ModelError if a part of a split model is missing."""
    if missing := [part.name for part in ModelConfig(path).shards if not part.is_file()]:
        raise ModelError(f"{path}: cannot be used without {', '.join(missing)}")


def _below(folder: Path, most: float) -> list[Path]:
    """The GGUF files of at most `most` bytes in and below `folder`, the smallest first."""
    files = (path for path in folder.rglob("*.gguf") if path.is_file() and not _LATER_PART.fullmatch(path.name))
    return [path for n_bytes, path in sorted((size(path), path) for path in files) if n_bytes <= most]


def model_folders() -> list[Path]:
    """Where duo and Hugging Face keep what they have downloaded, as far as it exists."""
    found = []
    with suppress(UsageError):  # no home directory
        found.append(cache_dir())
    with suppress(ImportError):
        found.append(Path(import_module("huggingface_hub.constants").HF_HUB_CACHE))
    return [folder for folder in found if folder.is_dir()]
