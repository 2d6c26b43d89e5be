"""Records: reads what a generation records, while its threads append to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duo.engine.metrics import BranchRecord, Event, Metrics, Resolution, StepRecord

Record = Event | StepRecord | BranchRecord | Resolution


class Records:
    """Reads each record of `metrics` once. One thread calls it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._n_seen = [0] * 6

    def fresh(self) -> Iterator[Record]:
        """What was recorded since the last call, list by list. Other threads append to the lists meanwhile."""
        log = self._metrics
        sources: list[Sequence[Record]] = [
            log.events, log.draft_events, log.details or [], log.steps, log.branch_records, log.resolutions
        ]  # fmt: skip
        for i, source in enumerate(sources):
            seen, self._n_seen[i] = self._n_seen[i], len(source)
            yield from source[seen : self._n_seen[i]]
