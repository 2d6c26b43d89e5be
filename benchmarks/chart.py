"""A bar chart as SVG: groups of bars, with a line at 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_BAR, _GAP, _PLOT, _LEFT, _TOP, _LABELS = 14, 12, 220, 40, 46, 96
_COLOURS = ("#1f6feb", "#8b949e", "#d4a72c")  # readable on a light and on a dark page
_TEXT = "font-family='sans-serif' font-size='12' fill='#6e7781'"


def bar_chart(title: str, series: Sequence[str], groups: Mapping[str, Sequence[float]]) -> str:
    """One group of bars per key of `groups`, which has a value for each of `series`."""
    top = max(1.0, *(value for values in groups.values() for value in values))
    group = len(series) * _BAR + _GAP
    width, height = _LEFT + group * len(groups) + _GAP, _TOP + _PLOT + _LABELS
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img'>",
        f"<title>{escape(title)}</title>",
        f"<text x='{_LEFT}' y='16' {_TEXT} font-weight='bold'>{escape(title)}</text>",
    ]
    x = _LEFT
    for name, colour in zip(series, _COLOURS, strict=False):
        parts.append(f"<rect x='{x}' y='24' width='10' height='10' fill='{colour}'/>")
        parts.append(f"<text x='{x + 14}' y='33' {_TEXT}>{escape(name)}</text>")
        x += 26 + 7 * len(name)
    step = 0.5 if top <= 3 else 1.0
    for i in range(int(top / step) + 1):
        y = _y(i * step, top)
        dash = "" if i * step == 1 else " stroke-dasharray='2 4'"
        parts.append(f"<line x1='{_LEFT}' x2='{width}' y1='{y:.1f}' y2='{y:.1f}' stroke='#afb8c1'{dash}/>")
        parts.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' {_TEXT} text-anchor='end'>{i * step:g}</text>")
    for i_group, (name, values) in enumerate(groups.items()):
        left = _LEFT + _GAP + i_group * group
        for i, (value, colour) in enumerate(zip(values, _COLOURS, strict=False)):
            y = _y(value, top)
            box = f"x='{left + i * _BAR}' y='{y:.1f}' width='{_BAR - 2}' height='{_TOP + _PLOT - y:.1f}'"
            parts.append(f"<rect {box} fill='{colour}'><title>{escape(name)}: {value:.2f}</title></rect>")
        at = f"{left + 8},{_TOP + _PLOT + 14}"
        parts.append(f"<text transform='translate({at}) rotate(40)' {_TEXT}>{escape(name)}</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT * (1 - value / top)
