"""Draws a benchmark: speed-up by k and schedule, T(n), acceptance by position, and the first moments of a text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from duo.bench import curves
from duo.bench.results import Results, Row
from duo.bench.timeline import timeline

# Okabe and Ito's colours, which colour-blind people can tell apart too.
_MODES = {
    "plain": ("#000000", "o"),
    "sync": ("#0072B2", "s"),
    "async": ("#D55E00", "^"),
    "auto": ("#009E73", "D"),
    "remote": ("#CC79A7", "v"),
}
_OTHERS = (("#999999", "X"), ("#56B4E9", "P"), ("#E69F00", "*"), ("#666666", "h"))


def draw(path: Path, results: Results, facts: dict[str, Any]) -> None:
    """Write all four as one picture, in the format that the name ends in. Raises OSError."""
    with mpl.rc_context(
        {
            "font.size": 9,
            "svg.hashsalt": "duo",
            "svg.fonttype": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = Figure(figsize=(13, 7.6), layout="constrained")
        figure.suptitle(_title(results, facts), fontsize=11, parse_math=False)  # a name may have $ in it
        axes: dict[str, Axes] = figure.subplot_mosaic(
            [["legend"] * 3, ["gain", "times", "acceptance"], ["line"] * 3], height_ratios=(0.15, 3, 2)
        )
        _draw_gains(axes["gain"], results)
        _draw_times(axes["times"], results)
        _draw_acceptance(axes["acceptance"], results)
        _draw_timeline(axes["line"], results)
        _draw_legend(axes["legend"], [axes[name] for name in ("gain", "times", "acceptance")])
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _title(results: Results, facts: dict[str, Any]) -> str:
    target, draft = facts["models"]["target"], facts["models"]["draft"]
    names = target["name"] if draft is None else f"{target['name']} with {draft['name']}"
    hardware, n_rounds = facts["hardware"], len({sample.i_round for sample in results.samples})
    circumstances = (
        f"{n_rounds} rounds of {facts['options']['predict']} greedy tokens on {hardware['cpu']}, "
        f"{hardware['usable_cores']} cores, {facts['date'][:10]}"
    )
    return f"duo bench: {names}\n{circumstances}"


def _draw_gains(axes: Axes, results: Results) -> None:
    rows = [row for row in results.rows() if row.contestant.n_max is not None and row.speed_up is not None]
    limits = sorted({str(row.contestant.n_max) for row in rows}, key=lambda name: (name == "auto", name.zfill(9)))
    modes = list(dict.fromkeys(row.contestant.mode for row in rows))
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
    axes.plot([], [], color="black", linewidth=1, linestyle="--", marker=_MODES["plain"][1], label="plain")
    for i, mode in enumerate(modes):
        found = [row for name in limits for row in rows if (row.contestant.mode, row.contestant.n_max) == (mode, name)]
        shift = 0.12 * (i - (len(modes) - 1) / 2)
        colour, marker = _style(mode, modes)
        axes.errorbar(
            [limits.index(str(row.contestant.n_max)) + shift for row in found],
            [_gain(row)[1] for row in found],
            yerr=[[_gain(row)[1] - _gain(row)[0] for row in found], [_gain(row)[2] - _gain(row)[1] for row in found]],
            color=colour, marker=marker, capsize=3, linewidth=1, label=mode,
        )  # fmt: skip
    axes.set_xticks(range(len(limits)), limits)
    axes.set_xlim(-0.6, max(0.6, len(limits) - 0.4))
    axes.set(title="Speed-up over plain (95 % interval)", xlabel="k: most candidates at once", ylabel="times as fast")


def _gain(row: Row) -> tuple[float, float, float]:
    assert row.speed_up is not None
    middle, low, high = row.speed_up
    return (middle if low is None else low, middle, middle if high is None else high)


def _draw_times(axes: Axes, results: Results) -> None:
    found = curves.target_times(results)
    for mode, times in found.items():
        colour, marker = _style(mode, list(found))
        axes.plot(list(times), list(times.values()), color=colour, marker=marker, linewidth=1, label=mode)
    axes.set(title="T(n): the target's decode of n tokens", xlabel="n: candidates and one more", ylabel="ms (median)")
    axes.set_ylim(bottom=0)
    _finish(axes, bool(found))


def _draw_acceptance(axes: Axes, results: Results) -> None:
    found = curves.acceptance(results)
    for mode, shares in found.items():
        colour, marker = _style(mode, list(found))
        positions = range(1, len(shares) + 1)
        axes.plot(positions, [100 * s for s in shares], color=colour, marker=marker, linewidth=1, label=mode)
    axes.set(title="Acceptance by position", xlabel="position among the candidates", ylabel="% accepted")
    axes.set_ylim(0, 105)
    _finish(axes, bool(found))


def _finish(axes: Axes, has_lines: bool) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not has_lines:
        _say(axes, "nothing was measured")


def _draw_timeline(axes: Axes, results: Results) -> None:
    found = curves.timeline(results)
    if found is None:
        axes.set_title("No draft worked in these runs")
        _say(axes, "nothing to show")
        return
    timeline(axes, found.events, found.start, found.end)
    axes.set_title(f"The beginning of a text: {found.contestant.name}, {found.category}", parse_math=False)
    handles, _ = axes.get_legend_handles_labels()
    axes.legend(frameon=False, ncols=len(handles), loc="upper center", bbox_to_anchor=(0.5, -0.22))


def _draw_legend(axes: Axes, panels: Iterable[Axes]) -> None:
    """One legend of the ways for all panels, above them so that it hides nothing."""
    axes.axis("off")
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        axes.legend(handles.values(), handles.keys(), frameon=False, loc="center", ncols=len(handles))


def _style(mode: str, modes: list[str]) -> tuple[str, str]:
    others = [name for name in modes if name not in _MODES]
    return _MODES[mode] if mode in _MODES else _OTHERS[others.index(mode) % len(_OTHERS)]


def _say(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color="#666666")
