"""The data of events: what the lead is and does now, and how far its texts are."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from duo.engine.metrics import SHARED, TRANSLATED, Totals
from duo.engine.records import Event
from duo.engine.request import TextRequest
from duo.engine.slot import Slot
from duo.engine.statistics import CandidateTotals
from duo.link.remote_drafts import ConnectedDraft
from duo.spec.policy import Policy


class ModelState(msgspec.Struct):
    """The target; size in bytes."""

    name: str
    description: str
    n_ctx: int
    size: int


class DraftState(msgspec.Struct):
    """The local draft; vocabulary: shared or translated."""

    name: str
    vocabulary: str


class BackState(msgspec.Struct):
    """A remote draft that is connected; its candidates since it connected. null: not measured yet."""

    id: int
    name: str
    model: str
    in_use: bool
    round_trip_ms: float | None
    verified: int
    accepted: int


class QueueState(msgspec.Struct):
    """Texts."""

    running: int
    waiting: int
    limit: int


class ScheduleState(msgspec.Struct):
    """The schedule, and the reason for its last change; an empty reason: it has not changed in this text."""

    now: str
    at_token: int
    reason: str


class LeadState(msgspec.Struct):
    """What the lead is and does. model: null while it is loading; schedule: null before the first text."""

    model: ModelState | None
    draft: DraftState | None
    lookup: bool
    backs: list[BackState]
    queue: QueueState
    schedule: ScheduleState | None


def lead_state(
    slot: Slot | None,
    name: str,
    backs: Sequence[ConnectedDraft],
    queue: QueueState,
    schedule: ScheduleState | None,
) -> LeadState:
    """The state of a lead. `slot`: None while the model is loading. `name`: the model's for clients."""
    model = draft = None
    if slot is not None:
        model = ModelState(name, slot.target.description, slot.n_ctx, slot.target.n_bytes)
        if slot.draft_model is not None:
            draft = DraftState(slot.draft_model.path.stem, SHARED if slot.translation is None else TRANSLATED)
    found = [
        BackState(
            back.number, back.name, back.model, back.is_working, round(1000 * back.policy.latency_s, 3) or None,
            back.n_verified, back.n_accepted,
        )
        for back in backs
    ]  # fmt: skip
    return LeadState(model, draft, slot is not None and slot.looks_up, found, queue, schedule)


def schedule_state(policy: Policy) -> ScheduleState:
    """What a policy decided last. Any thread may call this: the list of changes only grows, or is replaced."""
    changes = policy.chooser.changes
    if not changes:
        return ScheduleState(policy.schedule.value, 0, "")
    last = changes[-1]
    return ScheduleState(policy.schedule.value, last.tokens, last.reason)


class TextBegins(msgspec.Struct, tag_field="state", tag="begins"):
    """A text begins, with its prompt."""

    id: int
    time_ms: float
    prompt_tokens: int
    cached_tokens: int


class TextEnds(msgspec.Struct, tag_field="state", tag="ends"):
    """A text has ended; tokens_per_s without its first step, as in its `timings`."""

    id: int
    time_ms: float
    stop: str
    tokens: int
    tokens_per_s: float | None


class CandidateCounts(msgspec.Struct):
    """Candidates of one source."""

    verified: int
    accepted: int


class Progress(msgspec.Struct):
    """How far a text is; rates in tokens/s, null while unknown."""

    id: int
    tokens: int
    seconds: float  # since the first token
    tokens_per_s: float | None  # in about the last second
    alone_tokens_per_s: float | None  # of the target alone, as measured
    draft: CandidateCounts
    lookup: CandidateCounts
    accepted_by_position: list[float]  # of the draft's candidates, by position in the batch


class Span(msgspec.Struct, gc=False):
    """An operation of a model."""

    lane: str
    name: str
    start_ms: float
    end_ms: float
    tokens: int


class Spans(msgspec.Struct):
    """The operations that have ended since the last event."""

    id: int
    spans: list[Span]


class TextReader:
    """Reads the metrics of a text while its threads append to them. A reading costs no more as the text gets longer."""

    def __init__(self, number: int, request: TextRequest, started_s: float, since_s: float = 0.0) -> None:
        """Times in seconds of time.perf_counter(); those of events are since `started_s`.

        Operations that ended before `since_s` are not read.
        """
        self.number = number
        self.request = request
        self._started_s = started_s
        self._since_s = since_s
        self._totals = Totals(request.metrics)
        self._began: TextBegins | None = None

    @property
    def has_begun(self) -> bool:
        """Whether its prompt is being decoded, or was. Otherwise it waits, or it was cancelled while it did."""
        return self.request.metrics.n_prompt > 0

    @property
    def is_known(self) -> bool:
        """Whether its beginning was sent."""
        return self._began is not None

    def begins(self) -> TextBegins:
        """The event of its beginning."""
        if self._began is None:
            metrics = self.request.metrics
            began_s = metrics.events[0].start if metrics.events else time.perf_counter()
            self._began = TextBegins(self.number, self._ms(began_s), metrics.n_prompt, self.request.n_cached)
        return self._began

    def ends(self) -> TextEnds:
        """The event of its end, once all is read."""
        totals, stop = self._totals, self.request.metrics.stop
        time_ms = self._ms(totals.last_s or time.perf_counter())
        return TextEnds(self.number, time_ms, stop, totals.n_tokens, _rounded(totals.tokens_per_s))

    def read(self) -> list[Span]:
        """The operations since the last call; counts what else was recorded."""
        return [
            Span(record.lane, record.name, self._ms(record.start), self._ms(record.end), record.n)
            for record in self._totals.update()
            if isinstance(record, Event) and record.lane != "branches" and record.end >= self._since_s
        ]

    def progress(self, policy: Policy | None) -> Progress:
        """What was counted so far. `policy`: of the draft in use, which knows the target's speed alone."""
        totals, alone_s = self._totals, policy.alone.target(1).value if policy is not None else 0.0
        recent = totals.recent(time.perf_counter())
        return Progress(
            self.number,
            totals.n_tokens,
            round(totals.seconds, 3),
            _rounded(recent.rate if recent is not None else None),
            _rounded(1 / alone_s if alone_s else None),
            _counts(totals.draft),
            _counts(totals.lookup),
            [round(share, 3) for share in totals.draft.accept_rate_by_position],
        )

    def _ms(self, time_s: float) -> float:
        return int(1e6 * (time_s - self._started_s)) / 1000  # round() takes several times as long


def _counts(source: CandidateTotals) -> CandidateCounts:
    return CandidateCounts(source.verified, source.accepted)


def _rounded(rate: float | None) -> float | None:
    return round(rate, 3) if rate is not None else None
