"""What is measured: a way to write a text, and what one run of it says."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duo.engine.metrics import Metrics

MODES = ("plain", "sync", "async", "auto", "remote")
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Run:
    """One text, without its prompt, and its figures by the program's own count; None where it does not say."""

    tokens: int | None
    tokens_per_s: float  # of generation; loading and the prompt do not count
    text: str
    prompt_tokens_per_s: float | None = None
    first_token_s: float | None = None  # from the request
    n_verified: int | None = None  # candidates
    n_accepted: int | None = None  # of them
    tokens_per_decode: float | None = None
    target_ms: float | None = None  # per decode
    draft_ms: float | None = None  # per token
    hidden: float | None = None  # share of the draft's time in which the target computed too
    waste: float | None = None  # share of the drafted tokens that the text did not get
    metrics: Metrics | None = None  # duo's own


@dataclass(frozen=True, slots=True)
class Job:
    """What every contestant is asked for: `n_tokens` greedy tokens after a raw prompt, the end of text ignored."""

    target: Path
    draft: Path | None
    prompt: str
    prompt_file: Path  # the prompt and one newline, which programs drop
    n_tokens: int
    n_ctx: int


class Writer(Protocol):
    """A way to write a text."""

    def write(self, job: Job, stop: threading.Event) -> Run:
        """Write one text; end early, with any run or Interrupted, once `stop` is set. Raises DuoError."""
        ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row of the table."""

    mode: str  # one of MODES, or another program's name
    writer: Writer
    threads: str  # of the target, with those of the draft
    devices: str
    n_max: str | None = None  # most candidates in a batch, or auto; None without a draft
    may_fail: bool = False  # it was found, not asked for: if it cannot run it is left out

    @property
    def drafts(self) -> bool:
        """Whether a draft takes part."""
        return self.n_max is not None

    @property
    def name(self) -> str:
        """What distinguishes it from the others."""
        return self.mode if self.n_max is None else f"{self.mode} k={self.n_max}"


class Interrupted(Exception):
    """The benchmark was asked to stop."""
