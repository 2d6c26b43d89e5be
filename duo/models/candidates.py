"""Files that may be drafts for a target: those that are given, and those in the caches of models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

from duo.config import ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama.gguf_head import Head
from duo.models.cache import cache_dir

_LATER_PART = re.compile(r".*-(?!00001)\d{5}-of-\d{5}\.gguf", re.IGNORECASE)  # of a split model
_MOST = 0.5  # bytes of a draft, relative to the target's: a larger one is hardly faster

_ENCODERS = ("pooling_type", "attention.causal", "decoder_start_token_id")  # keys of embedding models, BERT, T5


def find_candidates(given: Sequence[Path], target: Path) -> list[Path]:
    """What may be a draft for `target`, without a look into the files: see check_draft().

    First what is given: files, and for each folder the small ones in and below it, or itself if there are none. Then
    the files in the caches of duo and of Hugging Face. In a folder the smallest comes first.
    """
    most = _MOST * _size(target)
    found: list[Path] = []
    for path in given:
        found += (_below([path], most) or [path]) if path.is_dir() else [path]
    found += _below(_caches(), most)
    unique: dict[str, Path] = {}  # a file may have several links
    for path in found:
        unique.setdefault(os.path.realpath(path), path)
    unique.pop(os.path.realpath(target), None)
    return list(unique.values())


def check_draft(path: Path, target: Path) -> None:
    """Raise ModelError if the file is no text model, or too large to be a draft for `target`."""
    if path.is_dir():
        raise ModelError(f"{path}: a folder without a GGUF file of at most half the target's size")
    size, target_size = _size(path), _size(target)
    if size > _MOST * target_size:
        raise ModelError(f"{path}: {size / 1e6:.0f} MB, more than half of the target's {target_size / 1e6:.0f} MB")
    with closing(Head(path)) as head:
        if head.text("general.type") not in (None, "model") or not head.count("tokenizer.ggml.tokens"):
            raise ModelError(f"{path}: not a text model")
        if any(map(head.has, _ENCODERS)):
            raise ModelError(f"{path}: an encoder, which continues no text")


def _below(folders: Iterable[Path], most: float) -> list[Path]:
    """The GGUF files of at most `most` bytes in and below `folders`, the smallest first."""
    files = {path for folder in folders for path in folder.rglob("*.gguf") if path.is_file()}
    sizes = {path: _size(path) for path in files if not _LATER_PART.fullmatch(path.name)}
    return sorted((path for path, size in sizes.items() if size <= most), key=lambda path: (sizes[path], path))


def _caches() -> list[Path]:
    """Where duo and Hugging Face keep what they have downloaded."""
    found = []
    with suppress(UsageError):  # no home directory
        found.append(cache_dir())
    with suppress(ImportError):
        found.append(Path(import_module("huggingface_hub.constants").HF_HUB_CACHE))
    return found


def _size(path: Path) -> int:
    """Bytes of all files of a model, as far as they exist."""
    return sum(part.stat().st_size for part in ModelConfig(path).shards if part.is_file())
