"""Contestants, the jobs that they run and the figures of each run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from duo.errors import DuoError

if TYPE_CHECKING:
    from typing_extensions import Self

    from duo.engine.metrics import Metrics

MODES = ("plain", "lookup", "sync", "async", "prepared", "auto", "remote")
PLAIN, LOOKUP, PREPARED, AUTO, REMOTE = "plain", "lookup", "prepared", "auto", "remote"
ALONE = (PLAIN, LOOKUP)  # modes without a draft


@dataclass(frozen=True, slots=True)
class Run:
    """One generated text, without its prompt, and the figures that the program reports; None if it does not."""

    tokens: int | None
    tokens_per_s: float  # of generation, without loading and prefill
    text: str
    prompt_tokens_per_s: float | None = None
    first_token_s: float | None = None  # from the request
    n_verified: int | None = None  # candidates
    n_accepted: int | None = None  # candidates
    tokens_per_decode: float | None = None
    target_ms: float | None = None  # per decode
    draft_ms: float | None = None  # per token
    hidden: float | None = None  # share of the draft's compute time that is concurrent with the target's
    waste: float | None = None  # share of drafted tokens that are not in the text
    predicted_tokens_per_s: float | None = None  # by duo's forecast
    own_us: float | None = None  # processor time of Python per step of the target, where devices are emulated,
    draft_own_us: float | None = None  # and per decode of a draft on a thread of its own
    metrics: Metrics | None = None  # of duo's runs only
    peak_bytes: int | None = None  # peak resident size, for a run in a separate process
    startup_s: float | None = None  # wall time of that process without the generation

    @classmethod
    def of(cls, text: str, statistics: Mapping[str, Any], metrics: Metrics | None = None) -> Self:
        """A run of duo with at least two tokens; `statistics` has the form of the --json report.

        Candidates are those of the draft and of the text itself.
        """
        prompt, generation, draft = statistics["prompt"], statistics["generation"], statistics["draft"] or {}
        sources = [source for source in (draft, statistics.get("lookup")) if source]
        return cls(
            int(generation["tokens"]),
            float(generation["tokens_per_s"]),
            text.strip("\n"),
            prompt_tokens_per_s=prompt["tokens_per_s"],
            first_token_s=generation["time_to_first_token_s"],
            n_verified=sum(source["verified"] for source in sources) if sources else None,
            n_accepted=sum(source["accepted"] for source in sources) if sources else None,
            tokens_per_decode=generation["tokens_per_decode"],
            target_ms=generation["target_ms_per_decode"],
            draft_ms=draft.get("ms_per_token"),
            hidden=draft.get("hidden"),
            waste=draft.get("unused"),
            predicted_tokens_per_s=(statistics.get("policy") or {}).get("predicted_tokens_per_s"),
            metrics=metrics,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """The request to every contestant: `n_tokens` greedy tokens after a raw prompt, end-of-text tokens ignored."""

    target: Path
    draft: Path | None
    prompt: str
    prompt_file: Path  # the prompt and one newline, which the programs strip
    n_tokens: int
    n_ctx: int


class Writer(Protocol):
    """Generates texts."""

    def write(self, job: Job, stop: threading.Event) -> Run:
        """Generate one text. Once `stop` is set, return any run or raise Interrupted. Raises DuoError."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Contestant:
    """A row of the table."""

    mode: str  # one of MODES, or the name of a program or command
    writer: Writer
    threads: str = ""  # of target and draft
    devices: str = ""
    n_max: str | None = None  # maximum candidates per batch, or auto; None without a draft
    may_fail: bool = False  # skip it if it fails: it was found on the PATH, not requested

    @property
    def name(self) -> str:
        """A unique name for output."""
        return self.mode if self.n_max is None else f"{self.mode} k={self.n_max}"


class Interrupted(Exception):
    """The benchmark was interrupted."""


class ParseError(DuoError):
    """A program failed, or its output cannot be parsed."""
