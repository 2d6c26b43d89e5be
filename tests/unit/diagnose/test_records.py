"""Records are read once each, also while a thread appends."""

from __future__ import annotations

import threading

from duo.diagnose.records import Records
from duo.engine.metrics import Metrics
from duo.spec.schedule import Schedule


def test_each_record_is_read_once() -> None:
    metrics = Metrics()
    records = Records(metrics)
    assert list(records.fresh()) == []
    metrics.decoded(1.0, 2.0, 5)
    metrics.drafted(1.0, 1.5, 1)
    assert list(records.fresh()) == [*metrics.events, *metrics.draft_events]
    metrics.stepped(2.0, 3, 2, 3, Schedule.ASYNC)
    metrics.prepared(1.0, 2.0, 3, 2)
    metrics.resolved(1, hit=True)
    assert list(records.fresh()) == [*metrics.steps, *metrics.branch_records, *metrics.resolutions]
    metrics.details = []
    metrics.detail("target", "verify", 1.0, 2)
    assert list(records.fresh()) == metrics.details
    assert list(records.fresh()) == []


def test_nothing_is_lost_while_threads_append() -> None:
    metrics = Metrics()
    records, found = Records(metrics), []
    n = 20_000

    def append() -> None:
        for i in range(n):
            metrics.decoded(i, i, 1)
            metrics.drafted(i, i, 1)

    thread = threading.Thread(target=append)
    thread.start()
    while thread.is_alive():
        found += list(records.fresh())
    found += list(records.fresh())
    thread.join()
    for log in (metrics.events, metrics.draft_events):
        lane = log[0].lane
        assert [record for record in found if getattr(record, "lane", "") == lane] == log
    assert len(found) == 2 * n
