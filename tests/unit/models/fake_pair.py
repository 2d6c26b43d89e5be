"""A demo pair of a megabyte."""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
from pathlib import Path

from duo.models import demo

WHEEL_NAME = "duo_fake_pair-1.0-py3-none-any.whl"
_MEMBER = "duo_fake_pair/model.gguf"
_MODEL = b"GGUF" + random.Random(1).randbytes(1 << 20)


def wheel() -> bytes:
    """The wheel, the same bytes every time."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_MEMBER), _MODEL)
    return file.getvalue()


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Stand in for llama.cpp: keep one byte in `file_type`."""
    target.write_bytes(source.read_bytes()[::file_type])


RECIPE = demo.Recipe(
    requirement="duo-fake-pair==1.0",
    wheel_sha256=hashlib.sha256(wheel()).hexdigest(),
    member=_MEMBER,
    target=demo.MadeFile("fake-f16.gguf", 1, len(_MODEL), hashlib.sha256(_MODEL).hexdigest()),
    draft=demo.MadeFile("fake-q4_0.gguf", 2, len(_MODEL[::2])),
)
NAMES = {RECIPE.target.name, RECIPE.draft.name}


def files(folder: Path) -> set[str]:
    """All that is in the folder but the lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


def assert_whole(pair: tuple[Path, Path]) -> None:
    """Both files are as they should be, and nothing else is left."""
    assert pair[0].read_bytes() == _MODEL
    assert pair[1].read_bytes() == _MODEL[::2]
    assert files(pair[0].parent) == NAMES
