"""Selects the GGUF files of a Hugging Face repository for a name such as `user/repo:Q4_K_M`, as llama.cpp does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from duo.errors import DownloadError, UsageError

_SPEC = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?", re.ASCII)
_PART = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(r"[-.](?P<quant>\w+)(?:-\d{5}-of-\d{5})?\.gguf$", re.ASCII | re.IGNORECASE)

_PREFERRED = ("Q4_K_M", "Q8_0")
_SIDECARS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")  # not models by themselves


@dataclass(frozen=True, slots=True)
class HubSpec:
    """A repository of the Hub and a quantisation."""

    repo: str
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubSpec:
        """Parse `user/repo[:quant]`. Raises UsageError for anything else."""
        match = _SPEC.fullmatch(text)
        if match is None:
            raise UsageError(f"a Hugging Face name has the form user/repo[:quant], not {text!r}")
        return cls(match["repo"], match["quant"])

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def select_files(names: Iterable[str], spec: HubSpec) -> list[str]:
    """The files for `spec` among the `names` in its repository: one, or all parts of a split model.

    Raises DownloadError if the repository has no such model; the message names what it has.
    """
    models = sorted(name for name in names if _is_model(name))
    if not models:
        raise DownloadError(f"{spec.repo} has no GGUF model")
    for quant in (spec.quant,) if spec.quant else _PREFERRED:
        for name in models:
            if _has_quant(name, quant):
                return _all_parts(name, models, spec)
    if spec.quant:
        available = ", ".join(dict.fromkeys(quant_of(name) or name for name in models))
        raise DownloadError(f"{spec.repo} has no {spec.quant} (available: {available})")
    return _all_parts(models[0], models, spec)


def quant_of(name: str) -> str | None:
    """The quantisation in the name of a file, such as Q4_K_M; None if there is none."""
    found = _QUANT.search(name)
    return found["quant"] if found else None


def _is_model(name: str) -> bool:
    file = name.rpartition("/")[2].lower()
    return file.endswith(".gguf") and not any(sidecar in file for sidecar in _SIDECARS)


def _has_quant(name: str, quant: str) -> bool:
    """Whether `name` contains `quant` as a word: F16 does not match BF16."""
    return re.search(rf"(?<![a-z0-9]){re.escape(quant)}[.-]", name, re.IGNORECASE) is not None


def _all_parts(first: str, models: list[str], spec: HubSpec) -> list[str]:
    part = _PART.fullmatch(first)
    if part is None:
        return [first]
    same = re.compile(rf"{re.escape(part['stem'])}-\d{{5}}-of-{part['count']}\.gguf", re.IGNORECASE)
    parts = [name for name in models if same.fullmatch(name)]
    if len(parts) != int(part["count"]):
        raise DownloadError(f"{spec.repo} has {len(parts)} of the {int(part['count'])} parts of {first}")
    return parts
