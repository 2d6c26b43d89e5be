"""Draft length and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from duo.cli.options.declare import DRAFTING, MAIN, option
from duo.config.engine_config import MAX_AHEAD, MAX_BRANCHES, MAX_CANDIDATES


def parse_auto(value: str | int | None) -> int | None:
    """A number, or None for `auto`."""
    if value in ("auto", None):
        return None
    try:
        return int(str(value))
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number or 'auto'") from None


ScheduleChoice = Literal["auto", "async", "sync", "off"]
LookupChoice = Literal["auto", "off"]


# fmt: off
DraftOpt = Annotated[int | None, option(
    "--draft", "--draft-max", "--draft-n", "--spec-draft-n-max", panel=MAIN, metavar="N|auto", parser=parse_auto,
    env=["LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"], show_default="auto",
    help=f"Maximum number of candidates to verify per decode, at most {MAX_CANDIDATES}; 0: no drafting.")]


@dataclass(frozen=True)
class DraftingOptions:
    """How far the draft runs ahead, and when it computes."""

    draft_ahead: Annotated[int | None, option(
        "--draft-ahead", panel=DRAFTING, metavar="N|auto", parser=parse_auto, show_default="auto",
        help=f"Maximum number of tokens that the draft may be ahead of the target, at most {MAX_AHEAD}; planning with "
        "large numbers takes time.")] = None
    schedule: Annotated[ScheduleChoice, option(
        "--schedule", panel=DRAFTING,
        help="async: both models concurrently, each with its own threads; sync: sequentially, each with all threads; "
        "off: the target alone; auto: the fastest, measured during the run.")] = "auto"
    branches: Annotated[int | None, option(
        "--branches", panel=DRAFTING, metavar="N|auto", parser=parse_auto, show_default="auto",
        help="Number of likely outcomes of a verification that the draft prepares while the target verifies (schedule "
        f"async), each in a branch: a sequence of its own in the draft's KV cache; at most {MAX_BRANCHES}. It helps a "
        "draft on hardware of its own; auto: as many as pay, often none. There are none for remote and RPC drafts, "
        "for a draft with another vocabulary, and with --verify rejection.")] = None
    lookup: Annotated[LookupChoice, option(
        "--lookup", panel=DRAFTING,
        help="auto: where it is faster, propose the tokens that followed an earlier occurrence of the last ones in the "
        "prompt or text, with or without a draft model. --schedule off and --draft 0 turn it off, too.")] = "auto"


@dataclass(frozen=True)
class ProfileOption:
    """Profiles."""

    profile: Annotated[bool, option(
        "--profile/--no-profile", panel=DRAFTING,
        help="Load the measurements of earlier runs and of duo tune for these models on this machine, and save those "
        "of this run.")] = True


@dataclass(frozen=True)
class ExactOption:
    """Bit-equal logits."""

    exact: Annotated[bool, option(
        "--exact", panel=DRAFTING,
        help="Compute bit-identical logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0), so "
        "that the text is the same even where two tokens are almost equally likely. To decode one token then takes as "
        "long as to decode two.")] = False
