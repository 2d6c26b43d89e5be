"""Plots of a benchmark: speed-up by k and mode, T(n), acceptance by position, and the timeline of one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from duo.bench import curves
from duo.bench.results import Results
from duo.bench.timeline import timeline

# The Okabe-Ito palette, which is colour-blind safe.
_MODES = {
    "plain": ("#000000", "o"),
    "lookup": ("#F0E442", "p"),
    "sync": ("#0072B2", "s"),
    "async": ("#D55E00", "^"),
    "auto": ("#009E73", "D"),
    "remote": ("#CC79A7", "v"),
}
_INTERVAL = ("speed_up_low", "speed_up_high")
_OTHERS = (("#999999", "X"), ("#56B4E9", "P"), ("#E69F00", "*"), ("#666666", "h"))


def draw(path: Path, results: Results, facts: dict[str, Any]) -> None:
    """Write all plots to one image file, in the format of its suffix. Raises OSError."""
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
        figure.suptitle(_title(results, facts), fontsize=11, parse_math=False)  # names may contain $
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
    names = " with ".join(model["name"] for model in (facts["models"]["target"], facts["models"]["draft"]) if model)
    hardware = facts["hardware"]
    return (
        f"duo bench: {names}\n{results.n_rounds} rounds of {facts['options']['predict']} greedy tokens on "
        f"{hardware['cpu']}, {hardware['usable_cores']} cores, {facts['date'][:10]}"
    )


def _draw_gains(axes: Axes, results: Results) -> None:
    rows = [row for row in results.rows() if row["k"] is not None and row["speed_up"] is not None]
    limits = sorted({row["k"] for row in rows}, key=lambda name: (name == "auto", name.zfill(9)))
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
    axes.plot([], [], color="black", linewidth=1, linestyle="--", marker=_MODES["plain"][1], label="plain")
    for i, mode in enumerate(modes):
        found = sorted((row for row in rows if row["mode"] == mode), key=lambda row: limits.index(row["k"]))
        gains = [row["speed_up"] for row in found]
        reach = [[abs((row[name] or row["speed_up"]) - row["speed_up"]) for row in found] for name in _INTERVAL]
        shift = 0.12 * (i - (len(modes) - 1) / 2)
        colour, marker = _style(mode, modes)
        axes.errorbar(
            [limits.index(row["k"]) + shift for row in found], gains, yerr=reach,
            color=colour, marker=marker, capsize=3, linewidth=1, label=mode,
        )  # fmt: skip
    axes.set_xticks(range(len(limits)), limits)
    axes.set_xlim(-0.6, max(0.6, len(limits) - 0.4))
    axes.set(title="Speed-up over plain (95 % interval)", xlabel="k: maximum candidates per batch", ylabel="speed-up")


def _draw_times(axes: Axes, results: Results) -> None:
    _draw_curves(axes, curves.target_times(results))
    axes.set(title="T(n): target decode of n tokens", xlabel="n: candidates + 1", ylabel="ms (median)")
    axes.set_ylim(bottom=0)


def _draw_acceptance(axes: Axes, results: Results) -> None:
    shares = curves.acceptance(results)
    _draw_curves(axes, {mode: {i + 1: 100 * s for i, s in enumerate(found)} for mode, found in shares.items()})
    axes.set(title="Acceptance by position", xlabel="position in the batch", ylabel="% accepted")
    axes.set_ylim(0, 105)


def _draw_curves(axes: Axes, found: Mapping[str, Mapping[int, float]]) -> None:
    for mode, values in found.items():
        colour, marker = _style(mode, list(found))
        axes.plot(list(values), list(values.values()), color=colour, marker=marker, linewidth=1, label=mode)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not found:
        _say(axes, "no data")


def _draw_timeline(axes: Axes, results: Results) -> None:
    found = curves.timeline(results)
    if found is None:
        axes.set_title("Timeline: no mode with a draft was measured")
        _say(axes, "no data")
        return
    timeline(axes, found.events, found.start, found.end)
    axes.set_title(f"Timeline of the first decodes: {found.contestant.name}, {found.category}", parse_math=False)
    handles, _ = axes.get_legend_handles_labels()
    axes.legend(frameon=False, ncols=len(handles), loc="upper center", bbox_to_anchor=(0.5, -0.22))


def _draw_legend(axes: Axes, panels: Iterable[Axes]) -> None:
    """One legend of the modes, above all panels."""
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
