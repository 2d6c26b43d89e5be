"""Threads and cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duo.cli.options.declare import HARDWARE, option


# fmt: off
@dataclass(frozen=True)
class ThreadOptions:
    """How many threads compute a token."""

    threads: Annotated[int | None, option(
        "-t", "--threads", panel=HARDWARE, metavar="N", min=1, env="LLAMA_ARG_THREADS", show_default="auto",
        help="Threads of the target.")] = None
    threads_draft: Annotated[int | None, option(
        "-td", "--threads-draft", panel=HARDWARE, metavar="N", min=1, show_default="auto",
        help="Threads of the draft. With -t, together at most the cores there are.")] = None


@dataclass(frozen=True)
class CoreOptions:
    """How many threads read the prompt, and where all of them are."""

    threads_batch: Annotated[int | None, option(
        "-tb", "--threads-batch", panel=HARDWARE, metavar="N", min=1, show_default="as -t",
        help="Threads of the target for the prompt.")] = None
    cpu_range: Annotated[str | None, option(
        "-Cr", "--cpu-range", panel=HARDWARE, metavar="LO-HI",
        help="Cores that the target's threads stay on, and in turns the draft's.")] = None
    cpu_range_draft: Annotated[str | None, option(
        "-Crd", "--cpu-range-draft", panel=HARDWARE, metavar="LO-HI",
        help="Cores for a draft beside the target.")] = None
