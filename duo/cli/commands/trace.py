"""`duo trace`: where the time of a recorded run went."""

from __future__ import annotations

import math

from duo.bench.timeline import new_figure, plot
from duo.cli.options.trace import TraceOptions
from duo.cli.terminal.console import say, warn
from duo.cli.terminal.files import blame, check_writable
from duo.diagnose.shares import Shares, end_of, first_token, where_it_went
from duo.diagnose.trace import Recording, read_trace
from duo.errors import TraceError, UsageError

_SLOWER = 1.15  # times as long: the target's decodes beside a draft that computes on the same cores
_PLOT_S = 1.0  # default length of a plot, in which single decodes are visible


def trace(options: TraceOptions) -> int:
    """Print where the time of a trace went, and plot it. Returns the exit status. Raises DuoError."""
    if options.picture is not None:
        if options.picture.suffix not in (".svg", ".png"):
            raise UsageError(f"--plot {options.picture}: the file name must end in .svg or .png")
        new_figure(1, 1)  # fail now if matplotlib is missing
    check_writable(options.picture, "--plot")
    recording = read_trace(options.file)
    start, end = _window(options, recording)
    if not recording.whole:
        warn(f"{options.file} is truncated: only its complete events are used")
    print("\n".join(render(where_it_went(recording, start, end))))  # noqa: T201 - the output
    if options.picture is not None:
        if options.start is options.end is None:
            end = min(end, start + _PLOT_S)
        with blame("--plot", options.picture):
            plot(options.picture, recording.events, start, end, f"{options.file.name}, {start:.2f} to {end:.2f} s")
        say(f"duo: plotted {start:.2f} to {end:.2f} s in {options.picture}")
    return 0


def _window(options: TraceOptions, recording: Recording) -> tuple[float, float]:
    """Start and end in seconds. Raises UsageError or TraceError."""
    for name, value in (("--from", options.start), ("--to", options.end)):
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{name} must be a time in seconds, not {value:g}")
    last = end_of(recording)
    if not last:
        raise TraceError(f"{options.file}: no events in this trace")
    start = first_token(recording) if options.start is None else options.start
    if options.start is None and start >= min(last, options.end or last):
        start = 0.0  # only a prompt was processed
    end = last if options.end is None else min(options.end, last)
    if start >= end:
        raise UsageError(f"no events from {start:g} to {end:g} s: the trace ends at {last:.3f} s")
    return start, end


def render(found: Shares) -> list[str]:
    """The table, totals and a line of advice."""
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
    return [*lines, "", *_totals(found), "", advise(found)]


def _totals(found: Shares) -> list[str]:
    lines = []
    if found.n_tokens is not None:
        schedules = ", ".join(f"{n} {schedule}" for schedule, n in found.tokens_by_schedule.items())
        lines.append(f"tokens    {found.n_tokens}, {found.n_tokens / found.seconds:.1f} tokens/s ({schedules or '-'})")
    if found.n_found:
        lines.append(f"lookup    {found.n_found} tokens from the text itself")
    if found.n_drafted:
        lines += [
            f"overlap   {_percent(found.overlap_s, found.seconds)} of the time, both models computed",
            f"hidden    {_percent(found.overlap_s, found.draft_s)} of the draft's time was concurrent with the target",
        ]
    if found.slowdown is not None:
        lines.append(
            f"slowdown  while the draft computed, a decode of the target took {found.slowdown:.2f} times as long"
        )
    if found.n_drafted and found.n_tokens is not None:
        # Tokens drafted before the window may be accepted in it.
        n_wasted = max(0, found.n_drafted - found.n_accepted)
        lines += [
            f"waste     {_percent(n_wasted, found.n_drafted)} of {found.n_drafted} drafted tokens were not accepted",
            f"accepted  {_percent(found.n_accepted, found.n_verified)} of {found.n_verified} verified tokens",
        ]
    if found.n_prepared:
        share = _percent(found.n_hits, found.n_contradicted)
        lines.append(
            f"branches  {found.n_prepared} outcomes prepared, hit rate {share} of {found.n_contradicted} contradictions"
        )
    return lines


def advise(found: Shares) -> str:
    """What these figures say about the pair, in one line."""
    return _sharing(found) or _balance(found)


def _sharing(found: Shares) -> str:
    """That both models share cores, and what helps then; empty if they do not, or if it does not matter."""
    if found.tokens_by_schedule["async"] <= found.tokens_by_schedule.total() / 2 or found.apart:
        return ""
    helps = "try --schedule sync, --schedule off or a smaller draft (duo suggest)"
    if found.slowdown is not None:
        times = f"the target's decodes take {found.slowdown:.1f} times as long while the draft computes"
        where = (
            "Both models share the cores" if found.apart is False else "The draft seems to share the target's hardware"
        )
        return f"{where}: {times}; {helps}." if found.slowdown >= _SLOWER else ""
    if found.apart is False:
        n = f"{found.cores} cores" if found.cores else "cores"
        return f"Both models share {n}, and no decode of the target alone shows what this costs: {helps}, and compare."
    return ""


def _balance(found: Shares) -> str:
    waits = found.share("target", "wait")
    computes, drafts = found.target_s / found.seconds, found.draft_s / found.seconds
    accepted = found.n_accepted / found.n_judged if found.n_judged else 1.0
    most = max(found.tokens_by_schedule, key=found.tokens_by_schedule.__getitem__, default="")
    findings = (
        (not found.n_drafted, "No tokens were drafted: `duo tune` reports whether a draft would pay."),
        (most == "off", "The target alone was faster: this draft is too slow here, or too few tokens are accepted."),
        (accepted < 0.5, "Most candidates are rejected: a draft more like the target helps more than a faster one."),
        (waits > 0.1, f"The target waits {waits:.0%} of the time: use a faster draft, or more threads for it."),
        (most == "sync", f"The models run sequentially: on separate hardware, the draft's {drafts:.0%} would be free."),
        (
            drafts < 0.7,
            f"The draft is idle {1 - drafts:.0%} of the time: on separate hardware, a larger and better draft would be "
            "free.",
        ),
        (computes > 0.85, "The target computes nearly all the time: only a better draft or a faster target helps."),
    )
    rest = f"The target computes {computes:.0%} of the time: the rest is overhead between its decodes."
    return next((advice for holds, advice in findings if holds), rest)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
