"""Threads and CPU affinity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from duo.cli.options.declare import THREADS, option
from duo.config import MAX_THREADS


# fmt: off
@dataclass(frozen=True)
class ThreadOptions:
    """Threads for generation."""

    threads: Annotated[int | None, option(
        "-t", "--threads", panel=THREADS, metavar="N", min=1, env="LLAMA_ARG_THREADS", show_default="auto",
        help=f"Number of threads of the target; llama.cpp uses at most {MAX_THREADS}.")] = None
    threads_draft: Annotated[int | None, option(
        "-td", "--threads-draft", panel=THREADS, metavar="N", min=1, show_default="auto",
        help="Number of threads of the draft; -t and -td together should not exceed the number of cores.")] = None


@dataclass(frozen=True)
class CoreOptions:
    """Threads for prompt processing, and CPU affinity."""

    threads_batch: Annotated[int | None, option(
        "-tb", "--threads-batch", panel=THREADS, metavar="N", min=1, show_default="as -t",
        help="Number of threads of the target for prompt processing.")] = None
    cpu_range: Annotated[str | None, option(
        "-Cr", "--cpu-range", panel=THREADS, metavar="LO-HI",
        help="Range of cores for the target, and for the draft with --schedule sync.")] = None
    cpu_range_draft: Annotated[str | None, option(
        "-Crd", "--cpu-range-draft", panel=THREADS, metavar="LO-HI",
        help="Range of cores for the draft with --schedule async.")] = None
