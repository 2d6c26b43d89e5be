"""Queues that tell when a thread waits on them."""

from __future__ import annotations

import pytest

from tests.unit.engine.helpers import WatchedCondition


@pytest.fixture(autouse=True)
def watched_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duo.engine.clock.Condition", WatchedCondition)
