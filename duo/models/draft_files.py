"""Files that may be drafts for a target: those that are given, and those in the caches of models."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

from duo.config import ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama.gguf_head import Head, check_text_model
from duo.models.hub import quant_of
from duo.models.storage import cache_dir

_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.IGNORECASE)  # of a split model
_MAX_SHARE = 0.5  # bytes of a draft, relative to the target's: a larger one is hardly faster


def find_candidates(given: Sequence[Path], target: Path) -> list[Path]:
    """What may be a draft for `target`: what is given, in folders the small ones, and what is in the caches.

    In a folder the smallest comes first. No file is opened: see check_draft().
    """
    most = _MAX_SHARE * size(target)
    found: list[Path] = []
    for path in given:
        found += (_below([path], most) or [path]) if path.is_dir() else [path]
    found += _below(model_folders(), most)
    unique: dict[str, Path] = {}  # a file may have several links
    for path in found:
        unique.setdefault(os.path.realpath(path), path)
    unique.pop(os.path.realpath(target), None)
    return list(unique.values())


def find_models(given: Sequence[Path] = ()) -> list[Path]:
    """The models in the caches, in what is given and below it; of a model in several files, the first."""
    files = [path for path in given if not path.is_dir()]
    found = _below((path for path in (*given, *model_folders()) if path.is_dir()), math.inf)
    return list({os.path.realpath(path): path for path in (*found, *files)}.values())


def is_small_enough(n_bytes: int, target_bytes: int) -> bool:
    """Whether a model of `n_bytes` may be a draft for a target of `target_bytes`."""
    return n_bytes <= _MAX_SHARE * target_bytes


def size(path: Path) -> int:
    """Bytes of all files of a model, as far as they exist."""
    return sum(part.stat().st_size for part in ModelConfig(path).shards if part.is_file())


def hub_name(path: Path) -> str | None:
    """What -hf calls a file in Hugging Face's cache, such as user/repo:Q4_K_M; None for any other file."""
    folder = next((part for part in path.parts[:-1] if part.startswith("models--")), None)
    quant = quant_of(path.name)
    if folder is None or quant is None:
        return None
    return f"{folder.removeprefix('models--').replace('--', '/', 1)}:{quant}"


def check_draft(path: Path, target: Path) -> None:
    """Raise ModelError if the file is no text model, or too large to be a draft for `target`."""
    if path.is_dir():
        raise ModelError(f"{path}: a folder without a GGUF file of at most half the target's size")
    own, targets = size(path), size(target)
    if not is_small_enough(own, targets):
        raise ModelError(f"{path}: {own / 1e6:.0f} MB, more than half of the target's {targets / 1e6:.0f} MB")
    with closing(Head(path)) as head:
        check_text_model(head, head.count("tokenizer.ggml.tokens"))


def _below(folders: Iterable[Path], most: float) -> list[Path]:
    """The GGUF files of at most `most` bytes in and below `folders`, the smallest first."""
    files = {path for folder in folders for path in folder.rglob("*.gguf") if path.is_file()}
    sizes = {path: size(path) for path in files if not _LATER_PART.fullmatch(path.name)}
    return sorted((path for path, n in sizes.items() if n <= most), key=lambda path: (sizes[path], path))


def model_folders() -> list[Path]:
    """Where duo and Hugging Face keep what they have downloaded."""
    found = []
    with suppress(UsageError):  # no home directory
        found.append(cache_dir())
    with suppress(ImportError):
        found.append(Path(import_module("huggingface_hub.constants").HF_HUB_CACHE))
    return found
