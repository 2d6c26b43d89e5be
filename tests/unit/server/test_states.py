"""What the events say about a lead and its texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from duo.server.events import lead_state, schedule_state
from duo.spec.policy import Policy
from duo.spec.schedule import Change, Schedule
from tests.scripted import N_CTX, ScriptedModel, ScriptedSlot


def test_the_state_of_a_lead() -> None:
    slot: Any = ScriptedSlot()
    backs = []
    for number, latency_s, counts in ((1, 0.0125, (9, 7)), (2, 0.0, (0, 0))):
        policy = Policy(4, 4, remote=True)
        if latency_s:
            policy.learn_latency(latency_s)
        counted = dict(zip(("n_verified", "n_accepted"), counts, strict=True))
        named = {"number": number, "name": f"b{number} at c", "model": "b"}
        backs.append(SimpleNamespace(**named, current=() if number == 1 else None, policy=policy, **counted))
    policy = Policy(4, 4)
    policy.begin(10)
    policy.chooser.changes += [Change(5, Schedule.SYNC, "earlier"), Change(20, Schedule.ASYNC, "better")]
    policy.chooser.now = Schedule.ASYNC
    service: Any = SimpleNamespace(
        loaded=SimpleNamespace(slot=slot), model_name="mine", n_texts=3, n_queue=64,
        drafts=SimpleNamespace(connected=backs),
    )  # fmt: skip
    found = lead_state(service, schedule_state(policy))
    assert found == {
        "model": {"name": "mine", "description": "scripted 12K F16", "n_ctx": N_CTX, "size": 67890},
        "draft": None,
        "lookup": slot.lookup is not None,
        "backs": [
            {"id": 1, "name": "b1 at c", "model": "b", "in_use": True, "round_trip_ms": 12.5, "verified": 9,
             "accepted": 7},
            {"id": 2, "name": "b2 at c", "model": "b", "in_use": False, "round_trip_ms": None, "verified": 0,
             "accepted": 0},
        ],
        "queue": {"running": 1, "waiting": 2, "limit": 64},
        "schedule": {"now": "async", "at_token": 20, "reason": "better"},
    }  # fmt: skip
    slot.draft_model = ScriptedModel()
    for slot.translation, vocabulary in ((None, "shared"), (object(), "translated")):
        found = lead_state(service, None)
        assert found["draft"] == {"name": "scripted", "vocabulary": vocabulary}
    service.loaded = None
    found = lead_state(service, None)
    assert (found["model"], found["draft"], found["lookup"]) == (None, None, False)
