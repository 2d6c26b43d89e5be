"""The picture of two lanes."""

from __future__ import annotations

import pytest

from duo.bench.timeline import COLOURS, new_figure, timeline
from duo.engine.records import Event

EVENTS = [
    Event("target", "decode", 0.0, 0.100, 3),
    Event("target", "wait", 0.100, 0.110, 0),
    Event("target", "decode", 0.110, 0.200, 5),
    Event("draft", "draft", 0.050, 0.120, 1),
    Event("remote draft", "draft", 0.150, 0.160, 1),
]


def test_each_model_that_computed_has_a_lane() -> None:
    pytest.importorskip("matplotlib")
    axes = new_figure(8, 2).add_subplot()
    timeline(axes, EVENTS, 0.050, 0.150)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["target", "draft"]
    assert axes.get_xlim() == pytest.approx((0, 100))
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the target is above"
    drawn = {bars.get_label(): [path.get_extents() for path in bars.get_paths()] for bars in axes.collections}
    assert set(drawn) == {"decode", "wait", "draft"}
    assert [(round(box.x0, 6), round(box.x1, 6)) for box in drawn["decode"]] == [(0, 50), (60, 100)], "clipped"
    rows = {name: {round(box.y0 + box.y1, 6) for box in boxes} for name, boxes in drawn.items()}
    assert (rows["decode"], rows["draft"]) == ({0}, {2}), "the draft's lane is below"
    assert [text.get_text() for text in axes.texts] == ["3", "5"]
    assert len(set(COLOURS.values())) == len(COLOURS)
