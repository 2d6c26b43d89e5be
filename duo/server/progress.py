"""Progress: the events about one text, from what its generation records."""

from __future__ import annotations

import time
from collections import deque

import msgspec

from duo.diagnose.records import Records
from duo.engine.metrics import Event, StepRecord
from duo.engine.slot import TextRequest
from duo.spec.policy import Policy
from duo.spec.types import Source

_RECENT_S = 1.0  # over which the rate is measured


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

    verified: int = 0
    accepted: int = 0


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
        self._records = Records(request.metrics)
        self._began: TextBegins | None = None
        self._draft, self._lookup = CandidateCounts(), CandidateCounts()
        self._by_position: list[CandidateCounts] = []
        self._n_tokens = self._n_first = 0
        self._first_s = self._last_s = 0.0  # the ends of the first step and the last
        self._recent: deque[StepRecord] = deque()

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
        time_ms = self._ms(self._last_s or time.perf_counter())
        n_timed, seconds = self._n_tokens - self._n_first, self._last_s - self._first_s
        return TextEnds(self.number, time_ms, self.request.metrics.stop, self._n_tokens, _rate(n_timed, seconds))

    def read(self) -> list[Span]:
        """The operations since the last call; counts what else was recorded."""
        spans, ms = [], self._ms
        for record in self._records.fresh():
            if isinstance(record, Event):
                lane, name, start, end, n = record
                if end >= self._since_s:
                    spans.append(Span(lane, name, ms(start), ms(end), n))
            elif isinstance(record, StepRecord):
                self._count(record)
        return spans

    def progress(self, policy: Policy | None) -> Progress:
        """What was counted so far. `policy`: of the draft in use, which knows the target's speed alone."""
        alone_s = policy.alone.measured_s(1) if policy is not None else 0.0
        return Progress(
            self.number,
            self._n_tokens,
            round(self._last_s - self._first_s, 3),
            self._recent_rate(time.perf_counter()),
            _rate(1, alone_s),
            self._draft,
            self._lookup,
            [round(counts.accepted / counts.verified, 3) for counts in self._by_position],
        )

    def _count(self, step: StepRecord) -> None:
        if not self._recent:
            self._n_first, self._first_s = step.n_tokens, step.end
        self._n_tokens += step.n_tokens
        self._last_s = step.end
        self._recent.append(step)
        counts = self._lookup if step.source is Source.LOOKUP else self._draft
        counts.verified += step.n_candidates
        counts.accepted += step.n_accepted
        if counts is self._draft:
            while len(self._by_position) < step.n_candidates:
                self._by_position.append(CandidateCounts())
            for i, position in enumerate(self._by_position[: step.n_candidates]):
                position.verified += 1
                position.accepted += i < step.n_accepted

    def _recent_rate(self, now_s: float) -> float | None:
        """Tokens/s in the last second, or in the last step if it took longer; less while the target has stalled."""
        recent = self._recent
        while len(recent) > 2 and recent[1].end <= self._last_s - _RECENT_S:
            recent.popleft()
        if len(recent) < 2:
            return None
        seconds = self._last_s - recent[0].end
        if now_s - self._last_s > max(_RECENT_S, seconds):
            seconds = now_s - recent[0].end
        return _rate(sum(step.n_tokens for step in recent) - recent[0].n_tokens, seconds)

    def _ms(self, time_s: float) -> float:
        return int(1e6 * (time_s - self._started_s)) / 1000  # round() takes several times as long


def _rate(n: int, seconds: float) -> float | None:
    return round(n / seconds, 3) if seconds > 0 else None
