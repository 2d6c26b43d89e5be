"""Which models draft for which targets: files that are given or in the caches of models, and a list of families."""

import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duo.config import ModelConfig
from duo.errors import ModelError, UsageError
from duo.llama.gguf_header import GgufHeader, check_text_model
from duo.models.hub import has_package, quant_of
from duo.models.storage import cache_dir, hub_dir

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
    """What -hf calls a file in Hugging Face's cache, such as user/repo:Q4_K_M; None for another, or without -hf."""
    folder = re.search(r"(?:^|/)models--([^/]*)/", path.as_posix())
    quant = quant_of(path.name)
    return f"{folder[1].replace('--', '/', 1)}:{quant}" if folder and quant and has_package() else None


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
    with suppress(UsageError):  # no home directory, as below
        found.append(cache_dir())
    with suppress(RuntimeError):
        found.append(hub_dir())
    return [folder for folder in found if folder.is_dir()]


# Families of models


@dataclass(frozen=True, slots=True)
class Family:
    """Targets that share a vocabulary, and a draft for them."""

    targets: str  # what they are called
    pattern: str  # of their names, in lower case, with - between words
    draft: str  # user/repo[:quant], as for -hf; empty: there is none as GGUF
    note: str = ""  # why there is none

    @property
    def advice(self) -> str:
        """Which draft to use, as a sentence."""
        if not self.draft:
            return f"For {self.targets} there is no draft with the same vocabulary: {self.note}."
        return f"For {self.targets}, a draft with the same vocabulary is {self.draft} on Hugging Face."

    def is_draft(self, name: str) -> bool:
        """Whether a model of this name is the draft of the family, in whatever format."""
        repo = self.draft.partition("/")[2].partition(":")[0]
        return bool(repo) and _plain(repo).removesuffix("gguf").rstrip("-") in _plain(name)


def _plain(name: str) -> str:
    """A name in lower case, with - between words."""
    return re.sub(r"[\s_/:]+", "-", name.lower())


# The first that fits counts. The repositories exist; that the vocabularies are the same is what their authors publish,
# and duo compares them when it loads a pair.
FAMILIES = (
    Family("DeepSeek R1 Distill Llama 70B", r"deepseek-r1-distill-llama",
           "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF"),
    Family("DeepSeek R1 Distill Qwen 7B to 32B", r"deepseek-r1-distill-qwen",
           "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF"),
    Family("Llama 3.1, 3.2, 3.3", r"llama-?3\.[123]", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    Family("Llama 2", r"llama-?2(?![\d.])", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF"),
    Family("Qwen2.5-Coder", r"qwen-?2\.5-coder", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"),
    Family("Qwen2.5", r"qwen-?2\.5", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    Family("Qwen3", r"qwen-?3(?![\d.]|-next)", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
    Family("Gemma 3", r"gemma-?3(?![\dn.])", "ggml-org/gemma-3-270m-it-GGUF:Q8_0"),
    Family("Gemma 2 9B, 27B", r"gemma-?2(?![\d.])", "bartowski/gemma-2-2b-it-GGUF"),
    Family("Ministral 3 8B, 14B", r"ministral-?3", "mistralai/Ministral-3-3B-Instruct-2512-GGUF"),
    Family("Mistral Small 3.1, 3.2", r"mistral-small-3\.[12]|mistral-small-.*(?:2503|2506)",
           "bartowski/alamios_Mistral-Small-3.1-DRAFT-0.5B-GGUF"),
    Family("Phi-4 14B", r"phi-?4(?!-mini)", "", "Phi-4-mini has another vocabulary"),
    Family("SmolLM2 360M, 1.7B", r"smollm-?2", "bartowski/SmolLM2-135M-Instruct-GGUF"),
    Family("Granite 3.3 8B", r"granite-?3\.3", "ibm-granite/granite-3.3-2b-instruct-GGUF"),
    Family("Granite 4.0", r"granite-?4\.0", "ibm-granite/granite-4.0-350m-GGUF"),
    Family("Falcon 3", r"falcon-?3", "bartowski/Falcon3-1B-Instruct-GGUF"),
    Family("OLMo 2", r"olmo-?2", "allenai/OLMo-2-0425-1B-Instruct-GGUF"),
    Family("gpt-oss 20B, 120B", r"gpt-oss", "", "no small model has its vocabulary"),
)  # fmt: skip


def family_of(names: Iterable[str]) -> Family | None:
    """The family of a target of these names (file, repository, header); None if unknown, or if it is its draft."""
    names = [_plain(name) for name in names if name]
    for family in FAMILIES:
        if any(re.search(rf"(?:{family.pattern})(?![a-z0-9])", name) for name in names):  # Gemma 2B is no Gemma 2
            return None if any(map(family.is_draft, names)) else family
    return None
