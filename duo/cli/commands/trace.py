"""`duo trace`: where the time of a recorded run went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.bench.timeline import new_figure, plot
from duo.cli.options.declare import HelpOpt
from duo.cli.terminal.console import say, warn
from duo.cli.terminal.files import blame, check_writable
from duo.diagnose.shares import Shares, end_of, first_token, where_it_went
from duo.diagnose.trace import Recording, read_trace
from duo.errors import TraceError, UsageError

_PICTURE_S = 1.0  # shown if nothing else is asked for: of more, single decodes can hardly be seen


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of `duo trace`."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="What duo --trace has written.", show_default=False)]
    start: Annotated[
        float | None,
        typer.Option("--from", metavar="SECONDS", show_default="the first token",
                     help="Leave out what was before, in seconds from the beginning of the trace."),
    ] = None  # fmt: skip
    end: Annotated[
        float | None,
        typer.Option("--to", metavar="SECONDS", show_default="the end", help="Leave out what was after."),
    ] = None  # fmt: skip
    picture: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the lanes into a file, .svg or .png: one second, if neither "
                     "--from nor --to says otherwise."),
    ] = None  # fmt: skip
    help: HelpOpt = False


def trace(options: TraceOptions) -> int:
    """Read a trace, print where the time went, and draw it if asked to. Returns the exit status. Raises DuoError."""
    if options.picture is not None:
        if options.picture.suffix not in (".svg", ".png"):
            raise UsageError(f"--plot {options.picture}: its name has to end in .svg or .png")
        new_figure(1, 1)  # find out now whether it can be drawn
    check_writable(options.picture, "--plot")
    recording = read_trace(options.file)
    start, end = _window(options, recording)
    if not recording.whole:
        warn(f"{options.file} ends in the middle: this is what there is")
    print("\n".join(render(where_it_went(recording, start, end))))  # noqa: T201 - this is what was asked for
    if options.picture is not None:
        if options.start is options.end is None:
            end = min(end, start + _PICTURE_S)
        with blame("--plot", options.picture):
            plot(options.picture, recording.events, start, end, f"{options.file.name}, {start:.2f} to {end:.2f} s")
        say(f"duo: {start:.2f} to {end:.2f} s are drawn in {options.picture}")
    return 0


def _window(options: TraceOptions, recording: Recording) -> tuple[float, float]:
    """From when to when, in seconds. Raises UsageError or TraceError."""
    for name, value in (("--from", options.start), ("--to", options.end)):
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{name} takes seconds from the beginning of the trace, not {value:g}")
    last = end_of(recording)
    if not last:
        raise TraceError(f"{options.file}: nothing happened in this run")
    start = first_token(recording) if options.start is None else options.start
    if options.start is None and start >= min(last, options.end or last):
        start = 0.0  # there is nothing but a prompt
    end = last if options.end is None else min(options.end, last)
    if start >= end:
        raise UsageError(f"nothing is left from {start:g} to {end:g} s: the trace ends after {last:.3f} s")
    return start, end


def render(found: Shares) -> list[str]:
    """The table, what follows from it, and a line of advice."""
    lines = [
        f"from {found.start:.3f} to {found.end:.3f} s",
        "",
        f"{'lane':<16}{'what':<10}{'times':>8}{'seconds':>10}{'share':>9}{'ms each':>10}",
    ]
    before = ""
    for share in found.shares:
        lane, before = share.lane if share.lane != before else "", share.lane
        each = f"{1000 * share.seconds / share.n:10.2f}" if share.n else ""
        row = f"{share.n or '':>8}{share.seconds:10.3f}{100 * share.seconds / found.seconds:7.1f} %{each}"
        lines.append(f"{lane:<16}{share.name:<10}{row}")
    lines += ["", *_figures(found), "", advise(found)]
    return lines


def _figures(found: Shares) -> list[str]:
    lines = []
    if found.n_tokens is not None:
        ways = ", ".join(f"{n} {schedule}" for schedule, n in found.tokens_by_schedule.items())
        lines.append(f"tokens    {found.n_tokens}, {found.n_tokens / found.seconds:.1f} a second ({ways or '-'})")
    if found.n_drafted:
        lines += [
            f"overlap   {100 * found.overlap_s / found.seconds:.1f} % of the time both models computed",
            f"hidden    {_percent(found.overlap_s, found.draft_s)} of the draft's time, the target computing meanwhile",
        ]
    if found.n_drafted and found.n_tokens is not None:
        # What was drafted before the window may be accepted in it.
        n_wasted = max(0, found.n_drafted - found.n_accepted)
        lines += [
            f"waste     {_percent(n_wasted, found.n_drafted)} of {found.n_drafted} drafted tokens were of no use",
            f"accepted  {_percent(found.n_accepted, found.n_verified)} of {found.n_verified} verified tokens",
        ]
    return lines


def advise(found: Shares) -> str:
    """What these figures say about the pair, in one line."""
    waits = found.share("target", "wait")
    computes, drafts = found.target_s / found.seconds, found.draft_s / found.seconds
    right = found.n_accepted / found.n_judged if found.n_judged else 1.0
    most = max(found.tokens_by_schedule, key=found.tokens_by_schedule.__getitem__, default="")
    findings = (
        (not found.n_drafted, "No draft took part: `duo tune` says whether one would help."),
        (most == "off", "The target was faster alone: this draft is too slow here, or guesses too badly."),
        (right < 0.5, "Most guesses are wrong: a draft more like the target helps more than a faster one."),
        (waits > 0.1, f"The target waits {waits:.0%} of the time: a faster draft, or more threads for it, would help."),
        (most == "sync", f"They take turns: on hardware of its own, the draft's {drafts:.0%} would cost no time."),
        (
            drafts < 0.7,
            f"The draft rests {1 - drafts:.0%} of the time: on hardware of its own a larger one, that guesses better, "
            "would cost nothing.",
        ),
        (computes > 0.85, "The target computes nearly all the time: only better guesses, or a faster target, help."),
    )
    rest = f"The target computes {computes:.0%} of the time: the rest is lost between its decodes."
    return next((advice for holds, advice in findings if holds), rest)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
