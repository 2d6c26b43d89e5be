"""State: what the lead is and does now, as an event."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duo.engine.metrics import SHARED, TRANSLATED
from duo.engine.slot import Slot
from duo.link.remote_draft import RemoteDraft
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


def model_state(slot: Slot, name: str) -> ModelState:
    """The target, called `name` by clients."""
    return ModelState(name, slot.target.description, slot.n_ctx, slot.target.n_bytes)


def draft_state(slot: Slot) -> DraftState | None:
    """The local draft, if there is one."""
    if slot.draft_model is None:
        return None
    return DraftState(slot.draft_model.path.stem, SHARED if slot.translation is None else TRANSLATED)


def back_states(drafts: Sequence[RemoteDraft]) -> list[BackState]:
    """The remote drafts, in the order in which they would be used."""
    return [
        BackState(
            draft.number, draft.name, draft.model, draft.is_working,
            round(1000 * draft.policy.latency_s, 3) or None, draft.n_verified, draft.n_accepted,
        )
        for draft in drafts
    ]  # fmt: skip


def schedule_state(policy: Policy) -> ScheduleState:
    """What a policy decided last. Any thread may call this: the list of changes only grows, or is replaced."""
    changes = policy.chooser.changes
    if not changes:
        return ScheduleState(policy.schedule.value, 0, "")
    last = changes[-1]
    return ScheduleState(policy.schedule.value, last.n_tokens, last.reason)
