"""GET /v1/duo/events: who subscribes when, what is sent in which order, limits and ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.server import events
from duo.server.api_error import STOPPING
from duo.server.events import MAX_SUBSCRIBERS, Subscriber
from duo.server.lead import Lead
from duo.spec.policy import Policy
from duo.spec.schedule import Change, Schedule
from tests.scripted import N_CTX, N_STEP, TEXT, ScriptedSlot
from tests.unit.server.conftest import client_of
from tests.unit.server.exchange import Exchange, until

PATH = "/v1/duo/events"
Event = tuple[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.002)


class Subscription(Exchange):
    """A client of the events."""

    def __init__(self, lead: Lead, headers: dict[str, str] | None = None) -> None:
        super().__init__(lead.app, PATH, headers, "GET")
        self.send(b"", more=False)
        self.raw = b""

    @property
    def all(self) -> list[Event]:
        """The events so far, comments left out."""
        while not self.sent.empty():
            self.raw += self.sent.get_nowait().get("body", b"")
        found = []
        for part in self.raw.split(b"\n\n"):
            if part.startswith(b"event: "):
                name, _, data = part.decode().removeprefix("event: ").partition("\ndata: ")
                found.append((name, json.loads(data)))
        return found

    def named(self, *names: str) -> list[dict[str, Any]]:
        return [document for name, document in self.all if name in names]

    def texts(self) -> list[tuple[int, str]]:
        return [(document["id"], document["state"]) for document in self.named("text")]

    async def has_texts(self, n: int) -> None:
        """Wait until it has `n` events of texts."""
        await until(lambda: len(self.texts()) >= n)

    async def end(self) -> None:
        self.disconnect()
        await self.task

    async def begun(self) -> Subscription:
        await until(lambda: self.named("state"))
        return self


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def write(lead: Lead, prompt: str = "a", **fields: Any) -> None:
    exchange = Exchange(lead.app, prompt=prompt, **fields)
    assert await exchange.status() == 200
    await exchange.task


async def polls(n: int = 2) -> None:
    """Let the task poll a few times."""
    for _ in range(n):
        await asyncio.sleep(2 * events.POLL_S)


def test_a_text_from_its_beginning_to_its_end(lead: Lead) -> None:
    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        await write(lead)
        await subscription.has_texts(2)
        await subscription.end()
        (begins, ends), found = subscription.named("text"), subscription.all
        assert found[0][0] == "state"
        assert (begins["id"], begins["state"], begins["prompt_tokens"], begins["cached_tokens"]) == (1, "begins", 2, 0)
        n = len(TEXT) + 1
        assert (ends["id"], ends["state"], ends["stop"], ends["tokens"]) == (1, "ends", "end of text", n)
        assert 0 < begins["time_ms"] <= ends["time_ms"]
        names = [name for name, _ in found if name != "state"]
        assert (names[0], names[-1]) == ("text", "text")
        last = subscription.named("progress")[-1]
        assert (last["id"], last["tokens"]) == (1, n)
        assert last["draft"] == {"verified": 20, "accepted": 20}
        assert last["accepted_by_position"] == [1.0, 1.0]
        spans = [span for document in subscription.named("spans") for span in document["spans"]]
        assert {(span["lane"], span["name"]) for span in spans} == {
            ("target", "prompt"), ("target", "decode"), ("draft", "draft"),
        }  # fmt: skip
        assert len([span for span in spans if span["lane"] == "draft"]) == 20
        assert all(0 < span["start_ms"] <= span["end_ms"] for span in spans)

    run(scenario)


def test_the_first_event_is_the_state(lead: Lead, slot: ScriptedSlot) -> None:
    slot.looks_up = True

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        assert subscription.named("state")[0] == {
            "model": {"name": "scripted", "description": "scripted 12K F16", "n_ctx": N_CTX, "size": 67890},
            "draft": None,
            "lookup": True,
            "backs": [],
            "queue": {"running": 0, "waiting": 0, "limit": 64},
            "schedule": None,
        }
        await subscription.end()

    run(scenario)


def test_the_state_is_sent_again_when_it_has_changed(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    policy = Policy(4, 4)
    policy.begin(3)
    slot.policy = policy

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        writing = [asyncio.create_task(write(lead)) for _ in range(3)]
        await until(lambda: subscription.named("state")[-1]["queue"] == {"running": 1, "waiting": 2, "limit": 64})
        await until(lambda: subscription.named("state")[-1]["schedule"] is not None)
        assert subscription.named("state")[-1]["schedule"] == {"now": "off", "at_token": 0, "reason": ""}
        policy.chooser.changes.append(Change(9, Schedule.ASYNC, "it pays"))
        policy.chooser.now = Schedule.ASYNC
        await until(lambda: subscription.named("state")[-1]["schedule"]["reason"] == "it pays")
        policy.alone.add_target(1, 0.01)
        await until(lambda: subscription.named("progress")[-1]["alone_tokens_per_s"] == 100.0)
        n = len(subscription.named("state"))
        await polls(5)
        assert len(subscription.named("state")) == n, "nothing has changed"
        slot.go_on()
        await asyncio.gather(*writing)
        await until(lambda: subscription.named("state")[-1]["queue"]["running"] == 0)
        await subscription.end()

    run(scenario)


def test_texts_that_begin_and_end_between_two_polls(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.2)

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        for prompt in ("a", "b"):
            await write(lead, prompt, max_tokens=4)
        await subscription.has_texts(4)
        assert subscription.texts() == [(1, "begins"), (1, "ends"), (2, "begins"), (2, "ends")]
        assert [document["tokens"] for document in subscription.named("progress")[-1:]] == [4]
        assert {document["id"] for document in subscription.named("spans")} == {1, 2}
        await subscription.end()

    run(scenario)


def test_a_subscriber_that_joins_in_the_middle(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=2)

    async def scenario() -> None:
        writing = asyncio.create_task(write(lead))
        await until(lambda: slot.requests and len(slot.requests[0].metrics.steps) == 2)
        first = await Subscription(lead).begun()
        await until(lambda: first.named("progress"))
        assert first.named("progress")[0]["tokens"] == 2 * N_STEP, "what was before counts"
        second = await Subscription(lead).begun()
        await until(lambda: second.named("progress"))
        slot.go_on()
        await writing
        for subscription in (first, second):
            await subscription.has_texts(2)
            assert subscription.texts() == [(1, "begins"), (1, "ends")]
            assert not [one for one in subscription.named("spans") if any(s["name"] == "prompt" for s in one["spans"])]
        assert first.named("text") == second.named("text")
        await first.end()
        await second.end()

    run(scenario)


def test_a_text_that_leaves_the_queue_is_not_mentioned(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        first = Exchange(lead.app, prompt="first")
        await until(lambda: slot.requests)
        second = Exchange(lead.app, prompt="second")
        await until(lambda: lead.n_texts == 2)
        second.disconnect()
        await second.task
        first.disconnect()
        await first.task
        await subscription.has_texts(2)
        assert subscription.named("text")[1]["stop"] == "interrupted"
        await polls()
        assert subscription.texts() == [(1, "begins"), (1, "ends")]
        await subscription.end()

    run(scenario)


def test_without_a_subscriber_nothing_is_kept_or_polled(lead: Lead) -> None:
    live = lead._events

    async def scenario() -> None:
        await write(lead)
        assert (live._task, live._readers, lead._service.on_submit) == (None, [], None)
        subscription = await Subscription(lead).begun()
        task = live._task
        assert task is not None
        await write(lead)
        await subscription.end()
        assert (live._task, live._readers, lead._service.on_submit) == (None, [], None)
        await until(task.cancelled)
        await write(lead)
        again = await Subscription(lead).begun()
        await write(lead)
        await again.has_texts(2)
        assert again.texts() == [(4, "begins"), (4, "ends")]
        await again.end()

    run(scenario)


def test_one_that_disconnects_makes_room_at_once(lead: Lead) -> None:
    async def scenario() -> None:
        all_of_them = [await Subscription(lead).begun() for _ in range(MAX_SUBSCRIBERS)]
        refused = Subscription(lead)
        assert await refused.status() == 503
        assert f"{MAX_SUBSCRIBERS} clients are receiving events" in (await refused.body()).decode()
        await all_of_them.pop().end()
        all_of_them.append(await Subscription(lead).begun())
        await write(lead)
        for subscription in all_of_them:
            await subscription.has_texts(2)
            await subscription.end()
        assert not lead._events._subscribers

    run(scenario)


def test_a_slow_subscriber_loses_spans_and_delays_no_other(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_BYTES", 60_000)

    async def scenario() -> None:
        slow, quick = await Subscription(lead).begun(), await Subscription(lead).begun()
        slow.reads.clear()
        for n in range(8):
            await write(lead, max_tokens=300, ignore_eos=True)
            await quick.has_texts(2 * (n + 1))
        assert len(quick.raw) > 120_000
        slow.reads.set()
        await until(lambda: slow.texts()[-1:] == [(8, "ends")])
        assert slow.texts() == quick.texts(), "only spans are lost"
        assert sum(len(one["spans"]) for one in slow.named("spans")) < sum(
            len(one["spans"]) for one in quick.named("spans")
        )
        await slow.end()
        await quick.end()

    run(scenario)


def test_one_that_does_not_read_at_all_is_ended(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_BYTES", 2_000)

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        subscription.reads.clear()
        for _ in range(20):
            await write(lead)
            await polls(1)
        await until(lambda: not lead._events._subscribers)  # while it hangs: others may take its place
        subscription.reads.set()
        await subscription.task
        assert not lead._events._subscribers

    run(scenario)


def test_stop_ends_the_streams_and_no_other_begins(lead: Lead, slot: ScriptedSlot, monkeypatch: Any) -> None:
    monkeypatch.setattr(events, "POLL_S", 3600.0)  # it does not wait for the next poll
    slot.hold(n_free=1)

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        writing = Exchange(lead.app, prompt="a", stream=True)
        await until(lambda: slot.requests)
        await asyncio.to_thread(lead.stop)
        await subscription.task
        await writing.task
        assert not lead._events._subscribers
        refused = Subscription(lead)
        assert await refused.status() == 503
        assert STOPPING in (await refused.body()).decode()

    run(scenario)


def test_events_while_the_model_is_loading(engine: Engine) -> None:
    lead = Lead(port=0)

    async def scenario() -> None:
        subscription = await Subscription(lead).begun()
        state = subscription.named("state")[0]
        assert (state["model"], state["queue"]["running"], state["schedule"]) == (None, 0, None)
        await asyncio.to_thread(lead.load, engine)
        await until(lambda: subscription.named("state")[-1]["model"])
        await subscription.end()

    run(scenario)
    lead.close()


def test_headers_and_the_key(make_lead: Callable[..., Lead]) -> None:
    lead = make_lead(api_keys=["sk-one"])
    assert client_of(lead).get(PATH).status_code == 401
    head = client_of(lead).head(PATH, headers={"Authorization": "Bearer sk-one"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert (head.headers["cache-control"], head.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert not lead._events._subscribers

    async def scenario() -> None:
        subscription = Subscription(lead, {"Authorization": "Bearer sk-one"})
        assert await subscription.status() == 200
        await (await subscription.begun()).end()

    run(scenario)


# A subscriber by itself


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_BYTES", 10)


async def rest(subscriber: Subscriber) -> list[bytes]:
    subscriber.end()
    return [piece async for piece in subscriber.pieces()]


def test_spans_are_dropped_first(small: None) -> None:
    async def scenario() -> None:
        subscriber = Subscriber()
        subscriber.put(b"state;")
        subscriber.put(b"one", may_drop=True)
        subscriber.put(b"two", may_drop=True)
        subscriber.put(b"end")
        subscriber.put(b"3", may_drop=True)
        assert await rest(subscriber) == [b"state;end3"]

    run(scenario)
