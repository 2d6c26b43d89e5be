"""The state of a lead, as an event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duo.engine.slot import Slot
from duo.server.state import BackState, DraftState, ModelState, back_states, draft_state, model_state, schedule_state
from duo.spec.policy import Policy
from duo.spec.schedule import Change, Schedule
from tests.scripted import N_CTX, ScriptedModel, ScriptedSlot


@pytest.fixture
def slot() -> Any:
    return ScriptedSlot()


def test_the_models(slot: Any) -> None:
    assert model_state(cast(Slot, slot), "mine") == ModelState("mine", "scripted 12K F16", N_CTX, 67890)
    assert draft_state(cast(Slot, slot)) is None
    slot.draft_model = ScriptedModel()
    assert draft_state(cast(Slot, slot)) == DraftState("scripted", "shared")
    slot.translation = object()
    assert draft_state(cast(Slot, slot)) == DraftState("scripted", "translated")


def test_remote_drafts() -> None:
    new = SimpleNamespace(number=2, name="b at c", model="b", is_working=False, policy=Policy(4, 4, remote=True))
    new.n_verified = new.n_accepted = 0
    used = SimpleNamespace(number=1, name="a at c", model="a", is_working=True, policy=Policy(4, 4, remote=True))
    used.n_verified, used.n_accepted = 9, 7
    used.policy.learn_latency(0.0125)
    drafts: Any = [used, new]
    assert back_states(drafts) == [
        BackState(1, "a at c", "a", True, 12.5, 9, 7),
        BackState(2, "b at c", "b", False, None, 0, 0),
    ]


def test_the_schedule_and_its_last_change() -> None:
    policy = Policy(4, 4)
    policy.begin(10)
    found = schedule_state(policy)
    assert (found.now, found.at_token, found.reason) == ("off", 0, "")
    policy.chooser.changes += [Change(5, Schedule.SYNC, "earlier"), Change(20, Schedule.ASYNC, "better")]
    policy.chooser.now = Schedule.ASYNC
    found = schedule_state(policy)
    assert (found.now, found.at_token, found.reason) == ("async", 20, "better")
