"""The options of `duo plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.options.declare import HelpOpt
from duo.config import AUTO_DRAFT

MAX_DRAFT = 16


# fmt: off
@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of `duo plan`."""

    target_ms: Annotated[str | None, typer.Option(
        "--target-ms", metavar="MS|N:MS,…",
        help="Milliseconds per decode of the target: one number for all batch sizes, or a list of size:ms.")] = None
    draft_ms: Annotated[str | None, typer.Option(
        "--draft-ms", metavar="MS|N:MS,…",
        help="Milliseconds per decode of the draft: of one token, or a list of N:MS for one token in each of N "
        "sequences, to predict what prepared outcomes gain (--branches).")] = None
    draft_pair_ms: Annotated[float | None, typer.Option(
        "--draft-pair-ms", metavar="MS",
        help="Milliseconds per decode of the draft of two tokens, as which it reads the last two after all candidates "
        "were accepted. Default: 1.3 times that of one, and the output says that it is assumed.")] = None
    machine: Annotated[str | None, typer.Option(
        "--machine", metavar="FILE[:PAIR]",
        help="Machine file with all times, instead of --target-ms and --draft-ms: see docs/benchmarking.md.")] = None
    latency_ms: Annotated[float | None, typer.Option(
        "--latency-ms", metavar="MS", help="Round trip to a draft on another machine.")] = None
    accept: Annotated[float | None, typer.Option(
        "--accept", metavar="SHARE",
        help="Probability that a candidate is accepted if all before it are, 0 to 1.")] = None
    table: Annotated[Path | None, typer.Option(
        "--table", metavar="FILE", help="File with the decode times of the target: batch size and ms in each line.",
    )] = None
    stats: Annotated[Path | None, typer.Option(
        "--json", metavar="FILE",
        help="File that a run has written with --json, for all values that are not given here.")] = None
    draft: Annotated[int, typer.Option(
        "--draft", metavar="N", min=1, max=MAX_DRAFT,
        help="Maximum number of candidates to verify per decode.")] = AUTO_DRAFT
    help: HelpOpt = False
