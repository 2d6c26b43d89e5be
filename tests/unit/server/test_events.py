"""GET /v1/duo/events: who subscribes when, what is sent in which order, limits and ends."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from duo.server import events
from duo.server.api_error import STOPPING
from duo.server.events import MAX_SUBSCRIBERS
from duo.server.lead_server import Lead
from duo.spec.policy import Policy
from duo.spec.schedule import Change, Schedule
from tests.scripted import N_STEP, TEXT, ScriptedSlot
from tests.unit.server.exchange import Exchange, until

pytestmark = pytest.mark.anyio
PATH = "/v1/duo/events"
Event = tuple[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.002)


class Subscription(Exchange):
    """A client of the events."""

    def __init__(self, lead: Lead) -> None:
        super().__init__(lead.app, PATH, method="GET")
        self.send(b"", more=False)
        self.raw = b""

    @property
    def all(self) -> list[Event]:
        """The events so far, comments left out."""
        while not self.sent.empty():
            self.raw += self.sent.get_nowait().get("body", b"")
        found = re.findall(r"event: (.*)\ndata: (.*)\n\n", self.raw.decode())
        return [(name, json.loads(data)) for name, data in found]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [document for found, document in self.all if found == name]

    async def texts(self, n: int) -> list[tuple[int, str]]:
        """The events of texts, once there are `n`."""
        await until(lambda: len(self.named("text")) >= n)
        return [(document["id"], document["state"]) for document in self.named("text")]

    async def end(self) -> None:
        self.disconnect()
        await self.task

    async def begun(self) -> Subscription:
        await until(lambda: self.named("state"))
        return self


async def write(lead: Lead, prompt: str = "a", **fields: Any) -> None:
    exchange = Exchange(lead.app, prompt=prompt, **fields)
    assert await exchange.status() == 200
    await exchange.task


async def polls(n: int = 2) -> None:
    """Let the task poll a few times."""
    for _ in range(n):
        await asyncio.sleep(2 * events.POLL_S)


async def test_the_state_and_a_text_from_its_beginning_to_its_end(lead: Lead, slot: ScriptedSlot) -> None:
    slot.lookup = True

    subscription = await Subscription(lead).begun()
    assert subscription.all[0][0] == "state"
    await write(lead)
    await subscription.texts(2)
    await subscription.end()
    begins, ends = subscription.named("text")
    assert (begins["prompt_tokens"], begins["cached_tokens"]) == (2, 0)
    assert (ends["stop"], ends["tokens"]) == ("end of text", len(TEXT) + 1)
    assert 0 < begins["time_ms"] <= ends["time_ms"]
    names = [name for name, _ in subscription.all if name != "state"]
    assert (names[0], names[-1]) == ("text", "text")
    last = subscription.named("progress")[-1]
    assert (last["id"], last["tokens"], last["draft"]) == (1, len(TEXT) + 1, {"verified": 20, "accepted": 20})
    spans = [(span["lane"], span["name"]) for event in subscription.named("spans") for span in event["spans"]]
    assert set(spans) == {("target", "prompt"), ("target", "decode"), ("draft", "draft")}
    assert spans.count(("draft", "draft")) == 20


async def test_the_state_is_sent_again_when_it_has_changed(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    slot.policy = policy = Policy(4, 4)
    policy.begin(3)

    subscription = await Subscription(lead).begun()

    def state() -> dict[str, Any]:
        return subscription.named("state")[-1]

    writing = [asyncio.create_task(write(lead)) for _ in range(3)]
    await until(lambda: state()["queue"] == {"running": 1, "waiting": 2, "limit": 64})
    await until(lambda: state()["schedule"] == {"now": "off", "at_token": 0, "reason": ""})
    policy.chooser.changes.append(Change(9, Schedule.ASYNC, "it pays"))
    await until(lambda: state()["schedule"]["reason"] == "it pays")
    n = len(subscription.named("state"))
    await polls(5)
    assert len(subscription.named("state")) == n, "nothing has changed"
    slot.go_on()
    await asyncio.gather(*writing)
    await until(lambda: state()["queue"]["running"] == 0)
    await subscription.end()


async def test_a_subscriber_that_joins_in_the_middle(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=2)
    writing = asyncio.create_task(write(lead))
    await until(lambda: slot.requests and len(slot.requests[0].metrics.steps) == 2)
    subscribers = []
    for _ in range(2):  # the second one while the lead is polled
        subscribers.append(await Subscription(lead).begun())
        await until(lambda: subscribers[-1].named("progress"))
    assert subscribers[0].named("progress")[0]["tokens"] == 2 * N_STEP, "what was before counts"
    slot.go_on()
    await writing
    for subscriber in subscribers:
        assert await subscriber.texts(2) == [(1, "begins"), (1, "ends")]
        assert not any(span["name"] == "prompt" for one in subscriber.named("spans") for span in one["spans"])
        await subscriber.end()


async def test_without_a_subscriber_nothing_is_polled_and_one_that_leaves_makes_room(lead: Lead) -> None:
    n_tasks = len(asyncio.all_tasks())
    for number in (1, 3):
        await write(lead)
        await polls()
        assert len(asyncio.all_tasks()) == n_tasks
        subscribers = [await Subscription(lead).begun() for _ in range(MAX_SUBSCRIBERS)]
        refused = Subscription(lead)
        assert await refused.status() == 503
        assert f"{MAX_SUBSCRIBERS} clients are receiving events" in (await refused.body()).decode()
        await subscribers.pop().end()
        subscribers.append(await Subscription(lead).begun())
        await write(lead)
        for subscriber in subscribers:
            assert await subscriber.texts(2) == [(number + 1, "begins"), (number + 1, "ends")]
            await subscriber.end()
    await polls()
    assert len(asyncio.all_tasks()) == n_tasks


async def test_one_that_does_not_read_at_all_is_ended_and_makes_room(
    lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_WAITING", 5)
    monkeypatch.setattr(events, "MAX_SUBSCRIBERS", 1)

    hangs = await Subscription(lead).begun()
    hangs.reads.clear()
    while await (other := Subscription(lead)).status() == 503:
        await write(lead)
        await polls(1)
    await other.end()
    hangs.reads.set()
    await hangs.task


async def test_stop_ends_the_streams_and_no_other_begins(lead: Lead, slot: ScriptedSlot, monkeypatch: Any) -> None:
    monkeypatch.setattr(events, "POLL_S", 3600.0)  # it does not wait for the next poll
    slot.hold(n_free=1)
    subscription = await Subscription(lead).begun()
    writing = Exchange(lead.app, prompt="a", stream=True)
    await until(lambda: slot.requests)
    await asyncio.to_thread(lead.stop)
    await subscription.task
    await writing.task
    refused = Subscription(lead)
    assert await refused.status() == 503
    assert STOPPING in (await refused.body()).decode()
