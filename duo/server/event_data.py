"""The data of events: what the lead is and does now, and how far its texts are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from duo.engine.metrics import SHARED, TRANSLATED, Totals
from duo.engine.request import TextRequest
from duo.engine.slot import Slot
from duo.engine.statistics import Event
from duo.link.remote_drafts import RemoteDraft
from duo.server.api import Json
from duo.spec.policy import Policy


def lead_state(slot: Slot | None, name: str, backs: Sequence[RemoteDraft], queue: Json, schedule: Json | None) -> Json:
    """The state of a lead. `slot`: None while the model is loading. `name`: the model's for clients.

    `schedule`: None before the first text.
    """
    model = draft = None
    if slot is not None:
        target, local = slot.target, slot.draft_model
        model = {"name": name, "description": target.description, "n_ctx": slot.n_ctx, "size": target.n_bytes}
        if local is not None:
            draft = {"name": local.path.stem, "vocabulary": SHARED if slot.translation is None else TRANSLATED}
    return {
        "model": model,
        "draft": draft,
        "lookup": slot is not None and slot.looks_up,
        "backs": [_back_state(back) for back in backs],
        "queue": queue,
        "schedule": schedule,
    }


def _back_state(back: RemoteDraft) -> Json:
    """A remote draft, and its candidates since it connected; times that were not measured yet are None."""
    return {
        "id": back.number,
        "name": back.name,
        "model": back.model,
        "in_use": back.current is not None,
        "round_trip_ms": round(1000 * back.policy.latency_s, 3) or None,
        "verified": back.n_verified,
        "accepted": back.n_accepted,
    }


def schedule_state(policy: Policy) -> Json:
    """What a policy decided last. Any thread may call this: the list of changes only grows, or is replaced."""
    changes = policy.chooser.changes
    at_token, reason = (changes[-1].tokens, changes[-1].reason) if changes else (0, "")
    return {"now": policy.schedule.value, "at_token": at_token, "reason": reason}


class TextReader:
    """Reads the metrics of a text while its threads append to them. A reading costs no more as the text gets longer."""

    def __init__(self, number: int, request: TextRequest, started_s: float, since_s: float = 0.0) -> None:
        """Times in seconds of time.perf_counter(); those of events are since `started_s`.

        Operations that ended before `since_s` are not read.
        """
        self.number = number
        self.request = request
        self.begun: Json | None = None  # the event of its beginning, once that was sent
        self._started_s = started_s
        self._since_s = since_s
        self._totals = Totals(request.metrics)

    def begin(self) -> Json:
        """The event of its beginning: its prompt is being decoded."""
        metrics = self.request.metrics
        self.begun = {
            "state": "begins",
            "id": self.number,
            "time_ms": self._ms(metrics.events[0].start if metrics.events else time.perf_counter()),
            "prompt_tokens": metrics.n_prompt,
            "cached_tokens": self.request.n_cached,
        }
        return self.begun

    def end(self) -> Json:
        """The event of its end, once all is read."""
        totals = self._totals
        return {
            "state": "ends",
            "id": self.number,
            "time_ms": self._ms(totals.last_s or time.perf_counter()),
            "stop": self.request.metrics.stop,
            "tokens": totals.n_tokens,
            "tokens_per_s": _rounded(totals.tokens_per_s),  # without its first step, as in `timings`
        }

    def read(self) -> list[Json]:
        """The operations since the last call; counts what else was recorded."""
        return [
            {
                "lane": record.lane,
                "name": record.name,
                "start_ms": self._ms(record.start),
                "end_ms": self._ms(record.end),
                "tokens": record.n,
            }
            for record in self._totals.update()
            if isinstance(record, Event) and record.lane != "branches" and record.end >= self._since_s
        ]

    def progress(self, policy: Policy | None) -> Json:
        """What was counted so far. `policy`: of the draft in use, which knows the target's speed alone."""
        totals, alone_s = self._totals, policy.alone.target(1).value if policy is not None else 0.0
        recent = totals.recent(time.perf_counter())
        return {
            "id": self.number,
            "tokens": totals.n_tokens,
            "seconds": round(totals.seconds, 3),  # since the first token
            "tokens_per_s": _rounded(recent.rate if recent is not None else None),
            "alone_tokens_per_s": _rounded(1 / alone_s if alone_s else None),
            "draft": {"verified": totals.draft.verified, "accepted": totals.draft.accepted},
            "lookup": {"verified": totals.lookup.verified, "accepted": totals.lookup.accepted},
            "accepted_by_position": [round(share, 3) for share in totals.draft.accept_rate_by_position],
        }

    def _ms(self, time_s: float) -> float:
        return int(1e6 * (time_s - self._started_s)) / 1000  # round() takes several times as long


def _rounded(rate: float | None) -> float | None:
    return round(rate, 3) if rate is not None else None
