"""What the events say about a lead and its texts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duo.config import GenerationConfig
from duo.engine.request import TextRequest
from duo.engine.slot import Slot
from duo.engine.statistics import StepRecord
from duo.server.event_data import TextReader, lead_state, schedule_state
from duo.spec.policy import Policy
from duo.spec.schedule import Change, Schedule
from duo.spec.types import Source
from tests.scripted import N_CTX, ScriptedModel, ScriptedSlot

START = 1000.0  # of the lead


@pytest.fixture
def request_() -> TextRequest:
    return TextRequest([1, 2, 3], GenerationConfig(), lambda _: None)


def step(request: TextRequest, end: float, candidates: int, accepted: int, source: Source = Source.DRAFT) -> None:
    record = StepRecord(end, end, candidates, accepted, accepted + 1, Schedule.ASYNC, source)
    request.metrics.steps.append(record)


def test_a_text_begins_goes_on_and_ends(request_: TextRequest) -> None:
    reader, policy = TextReader(7, request_, START), Policy(4, 4)
    request_.metrics.n_prompt, request_.n_cached = 3, 2
    request_.metrics.decoded(START + 0.5, START + 0.7, 1)
    begins = {"state": "begins", "id": 7, "time_ms": 500.0, "prompt_tokens": 3, "cached_tokens": 2}
    assert reader.begin() == reader.begun == begins
    now = time.perf_counter()
    for end, *candidates in ((now - 2, 0, 0), (now - 1, 3, 1), (now - 0.5, 2, 2), (now, 4, 4, Source.LOOKUP)):
        step(request_, end, *candidates)
        reader.read()
    policy.concurrent.add_target(1, 0.5)
    assert reader.progress(policy)["alone_tokens_per_s"] is None, "the target was not alone"
    policy.alone.add_target(1, 0.02)
    assert reader.progress(policy) == {
        "id": 7, "tokens": 11, "seconds": 2.0, "tokens_per_s": 8.0, "alone_tokens_per_s": 50.0,
        "draft": {"verified": 5, "accepted": 3}, "lookup": {"verified": 4, "accepted": 4},
        "accepted_by_position": [1.0, 0.5, 0.0],
    }  # fmt: skip
    request_.metrics.stop = "token limit"
    assert reader.end() == {
        "state": "ends", "id": 7, "time_ms": pytest.approx(1000 * (now - START), abs=0.01), "stop": "token limit",
        "tokens": 11, "tokens_per_s": 5.0,
    }  # fmt: skip


def test_spans_are_read_once_and_none_from_before_the_subscriber_but_all_steps_count(request_: TextRequest) -> None:
    metrics = request_.metrics
    metrics.decoded(START + 1, START + 2, 9)
    reader = TextReader(1, request_, START, since_s=START + 3)
    metrics.decoded(START + 2, START + 3.125, 4)
    metrics.drafted(START + 3, START + 3.25, 1, "remote draft")
    metrics.prepared(START + 3, START + 4, 2, 2)
    step(request_, START + 1, 2, 2)
    spans = [tuple(span.values()) for span in reader.read()]
    assert spans == [("target", "prompt", 2000.0, 3125.0, 4), ("remote draft", "draft", 3000.0, 3250.0, 1)]
    assert reader.read() == []
    assert reader.progress(None)["tokens"] == 3


def test_the_state_of_a_lead() -> None:
    slot: Any = ScriptedSlot()
    queue: Any = {"running": 1, "waiting": 2, "limit": 64}
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
    assert schedule_state(policy) == {"now": "off", "at_token": 0, "reason": ""}
    policy.chooser.changes += [Change(5, Schedule.SYNC, "earlier"), Change(20, Schedule.ASYNC, "better")]
    policy.chooser.now = Schedule.ASYNC
    found = lead_state(cast(Slot, slot), "mine", cast(Any, backs), queue, schedule_state(policy))
    assert found == {
        "model": {"name": "mine", "description": "scripted 12K F16", "n_ctx": N_CTX, "size": 67890},
        "draft": None,
        "lookup": slot.looks_up,
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
        found = lead_state(cast(Slot, slot), "mine", (), queue, None)
        assert found["draft"] == {"name": "scripted", "vocabulary": vocabulary}
    found = lead_state(None, "", (), queue, None)
    assert (found["model"], found["draft"], found["lookup"]) == (None, None, False)
