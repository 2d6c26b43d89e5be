"""How far ahead the draft is, and when it computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer

from duo.cli.options.declare import DRAFTING, MAIN, option


def parse_auto(value: str | int | None) -> int | None:
    """A number, or None for `auto`."""
    if value in ("auto", None):
        return None
    try:
        return int(str(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is no number and not 'auto'") from None


class ScheduleChoice(str, Enum):
    """How target and draft share the machine."""

    AUTO = "auto"
    ASYNC = "async"
    SYNC = "sync"
    OFF = "off"


# What several commands declare one by one.
# fmt: off
DraftOpt = Annotated[int | None, option(
    "--draft", "--draft-max", "--draft-n", "--spec-draft-n-max", panel=MAIN, metavar="N|auto", parser=parse_auto,
    env=["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"], show_default="auto",
    help="Most candidates verified at once; 0 turns drafting off.")]


@dataclass(frozen=True)
class DraftingOptions:
    """How far ahead the draft is, and when it computes."""

    draft_ahead: Annotated[int | None, option(
        "--draft-ahead", panel=DRAFTING, metavar="N|auto", parser=parse_auto, show_default="auto",
        help="Most tokens that the draft may be ahead of the target.")] = None
    schedule: Annotated[ScheduleChoice, option(
        "--schedule", panel=DRAFTING,
        help="async: both models at once, each with its own threads; sync: in turns, each with all threads; off: the "
        "target alone; auto: whatever is fastest, found while it runs.")] = ScheduleChoice.AUTO


@dataclass(frozen=True)
class ProfileOption:
    """What is learned."""

    profile: Annotated[bool, option(
        "--profile/--no-profile", panel=DRAFTING,
        help="Begin with what earlier runs and duo tune have learned about these models on this machine, and keep what "
        "this run learns.")] = True


@dataclass(frozen=True)
class ExactOption:
    """Bit-equal logits."""

    exact: Annotated[bool, option(
        "--exact", panel=DRAFTING,
        help="Bit-equal logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0), so that even "
        "near-ties come out the same; single tokens cost as much as two.")] = False
