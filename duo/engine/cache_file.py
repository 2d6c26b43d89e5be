"""The file of a saved conversation: a copy of the target's cache."""

import os
import stat
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from duo.config import EngineConfig
from duo.engine.kv_store import SavedCache
from duo.errors import PromptError
from duo.llama.build import versions
from duo.llama.context import Context
from duo.llama.sequences import SavedState
from duo.models.storage import replacing


def write_cache(path: Path, cache: SavedCache, identity: str) -> None:
    """Write the copy of a target's cache to a file. Raises OSError."""
    assert cache.state is not None
    numbers = [cache.n_prompt, cache.n_large, cache.state.n_past]
    with replacing(path, f".{path.name}.") as file:  # an older file is kept if this one cannot be written
        np.savez(file, identity=identity, tokens=np.array(cache.tokens), numbers=numbers, cells=cache.state.cells)


def read_cache(path: Path, identity: str, n_most: int, n_ctx: int, n_vocab: int) -> SavedCache:
    """Read such a file of at most `n_most` bytes. Raises OSError, or PromptError if it is damaged or does not fit.

    Nothing in it is believed: not its kind (a pipe would block), not that it is not packed, and no number.
    """
    damaged = PromptError(f"{path.name} is not a saved conversation, or damaged")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PromptError(f"{path.name} is not a file")
        if status.st_size > n_most:
            raise PromptError(f"{path.name} has {status.st_size} bytes: a conversation has at most {n_most} here")
        try:
            with ZipFile(file) as archive:
                if sum(member.file_size for member in archive.infolist()) > status.st_size:  # it would be unpacked
                    raise damaged
            file.seek(0)
            with np.load(file) as arrays:
                found, *lists = (arrays[name] for name in ("identity", "tokens", "numbers", "cells"))
            if found.shape or any(one.ndim != 1 or one.dtype.kind not in "iu" for one in lists):
                raise damaged
        except Exception:  # of zipfile and numpy, which have many; their words are for programmers
            raise damaged from None
    if str(found) != identity:
        raise PromptError(f"{path.name} was saved with another model, other options or another key")
    tokens, numbers, cells = lists
    n = len(tokens)
    if n > n_ctx:
        raise PromptError(f"{path.name} has {n} tokens, the context {n_ctx}")
    are_tokens = n and tokens.min() >= 0 and tokens.max() < n_vocab
    if not are_tokens or len(numbers) != 3 or numbers.min() < 0 or numbers[2] != n or cells.dtype != np.uint8:
        raise damaged
    return SavedCache(tuple(tokens.tolist()), int(numbers[0]), int(numbers[1]), SavedState(cells, n))


def identity_of(config: EngineConfig, target: Context, owner: str) -> str:
    """What a file of a text of `owner` must match."""
    whose = f" {sha256(owner.encode()).hexdigest()}" if owner else ""
    types = f"{config.type_k} {config.type_v} {config.exact} {target.flash_attn == 'off'}"
    return f"{target.model.description} {target.model.n_bytes} {versions()['llama.cpp']} {types}{whose}"
