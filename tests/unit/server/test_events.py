"""GET /v1/duo/events: what is sent to whom in which order, limits and ends; of a lead that listens."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import httpx
import pytest
from httpx_sse import EventSource

from duo.http.listener import Limits
from duo.remote.drafts import RemoteDraft, _Counted
from duo.server import events
from duo.server.events import TextReader
from duo.server.lead_server import Lead
from duo.speculation.controller import Controller
from duo.speculation.modes import Change, Schedule
from tests.raw_http import connect, read_to_the_end
from tests.scripted import N_CTX, N_STEP, TEXT, ScriptedModel, ScriptedSlot
from tests.serving import PATIENCE_S, assert_error, wait_until

Told = tuple[str, Any]
MAX = 3


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.002)
    monkeypatch.setattr(events, "MAX_SUBSCRIBERS", MAX)


@pytest.fixture
def lead(make_lead: Callable[..., Lead]) -> Iterator[Lead]:
    with make_lead() as lead:
        yield lead


@contextmanager
def subscribed(lead: Lead) -> Iterator[Iterator[Told]]:
    with httpx.stream("GET", f"{lead.url}/v1/duo/events", timeout=PATIENCE_S) as response:
        if response.status_code != 200:
            response.read()
            assert_error(response, 503, f"{MAX} clients are receiving events|the server is stopping")
            yield iter(())
        else:
            yield ((event.event, event.json()) for event in EventSource(response).iter_sse())


def until(told: Iterator[Told], name: str, **fields: Any) -> list[Told]:
    """The events up to the next one of this name with these fields."""
    found = []
    for event in told:
        found.append(event)
        if event[0] == name and event[1].items() >= fields.items():
            return found
    raise AssertionError(f"the stream has ended after {found}")


def write(lead: Lead) -> None:
    assert httpx.post(f"{lead.url}/v1/completions", json={"prompt": "a"}, timeout=PATIENCE_S).status_code == 200


def queue(running: int, waiting: int) -> dict[str, Any]:
    texts = [{"id": running + i + 1, "prompt_tokens": 2, "pauses": 0} for i in range(waiting)]
    return {"queue": {"running": running, "waiting": waiting, "limit": 64, "texts": texts}}


def test_a_text_from_its_beginning_to_its_end(lead: Lead, slot: ScriptedSlot) -> None:
    with subscribed(lead) as told:
        until(told, "state")
        write(lead)
        found = [event for event in until(told, "text", state="ends") if event[0] != "state"]
    begins, ends, last = found[0][1], found[-1][1], [told for name, told in found if name == "progress"][-1]
    assert (begins["state"], begins["prompt_tokens"], begins["cached_tokens"]) == ("begins", 2, 0)
    assert (ends["stop"], ends["tokens"]) == ("end of text", len(TEXT) + 1)
    assert 0 < begins["time_ms"] <= ends["time_ms"]
    assert (last["id"], last["tokens"], last["draft"]) == (1, len(TEXT) + 1, {"verified": 20, "accepted": 20})
    spans = [(span["lane"], span["name"]) for name, told in found if name == "spans" for span in told["spans"]]
    assert set(spans) == {("target", "prompt"), ("target", "decode"), ("draft", "draft")}
    assert spans.count(("draft", "draft")) == 20


def test_the_state_of_a_lead(make_lead: Callable[..., Lead], slot: ScriptedSlot) -> None:
    slot.lookup, slot.draft_model = object(), ScriptedModel()
    with make_lead() as lead:
        for number in (1, 2):
            assert lead.drafts.join(RemoteDraft(lead.drafts, f"b{number} at c", "b", lambda: None))
        first = lead.drafts.connected[0]
        first.estimates.costs.add_latency(0.0125)
        first._counted, first.current = _Counted(9, 7), ()  # type: ignore[assignment]
        with subscribed(lead) as told:
            ((_, state),) = until(told, "state")
    back = {"model": "b", "in_use": False, "round_trip_ms": None, "verified": 0, "accepted": 0}
    used = {"in_use": True, "round_trip_ms": 12.5, "verified": 9, "accepted": 7}
    assert state == {
        "model": {"name": "scripted", "description": "scripted 12K F16", "n_ctx": N_CTX, "size": 67890},
        "draft": {"name": "scripted", "vocabulary": "shared"},
        "lookup": True,
        "backs": [{"id": 1, "name": "b1 at c"} | back | used, {"id": 2, "name": "b2 at c"} | back],
        "schedule": None,
        **queue(0, 0),
    }
    with Lead(port=0) as loading, subscribed(loading) as told:
        ((_, state),) = until(told, "state")
    assert (state["model"], state["draft"], state["lookup"]) == (None, None, False)


def test_the_state_is_sent_again_when_it_has_changed(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    slot.controller = controller = Controller()
    schedule = {"now": "off", "at_token": 0, "reason": ""}
    with subscribed(lead) as told, ThreadPoolExecutor() as pool:
        writing = [pool.submit(write, lead) for _ in range(3)]
        found = until(told, "state", schedule=schedule, **queue(1, 2))
        controller.chooser.changes.append(Change(9, Schedule.ASYNC, "it pays"))
        found += until(told, "state", schedule=schedule | {"at_token": 9, "reason": "it pays"})
        slot.go_on()
        found += until(told, "state", **queue(0, 0))
        assert all(done.result() is None for done in writing)
    _, *states = (told for name, told in found if name == "state")  # the first poll sends it in any case
    assert all(before != after for before, after in pairwise(states))


def test_a_subscriber_that_joins_in_the_middle(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=2)
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        pool.submit(write, lead)
        wait_until(lambda: slot.requests and len(slot.requests[0].metrics.steps) == 2)
        subscribers, found = [], []
        for _ in range(2):  # the second one while the lead is polled
            subscribers.append(stack.enter_context(subscribed(lead)))
            found.append(until(subscribers[-1], "progress", id=1, tokens=2 * N_STEP))  # what was before counts
        slot.go_on()
        for before, told in zip(found, subscribers, strict=True):
            all_told = before + until(told, "text", state="ends")
            assert [told["state"] for name, told in all_told if name == "text"] == ["begins", "ends"]
            spans = [span["name"] for name, told in all_told if name == "spans" for span in told["spans"]]
            assert "prompt" not in spans


def test_a_subscriber_that_comes_after_a_text_is_told_what_it_was_like(lead: Lead) -> None:
    with subscribed(lead) as told:
        assert [name for name, _ in until(told, "state")] == ["state"], "there was none"
    found = httpx.post(f"{lead.url}/v1/completions", json={"prompt": "a"}, timeout=PATIENCE_S).json()
    with subscribed(lead) as told:
        _, (first, progress), (second, spans) = until(told, "spans")
        n_tokens = found["usage"]["completion_tokens"]
        assert (first, second, progress["id"], progress["tokens"]) == ("progress", "spans", 1, n_tokens)
        assert "target" in {span["lane"] for span in spans["spans"]}


def test_without_a_subscriber_nothing_is_polled_and_one_that_leaves_makes_room(lead: Lead) -> None:
    for number in (1, 3):
        write(lead)
        assert not lead._service.watchers
        with ExitStack() as stack:
            subscribers = [stack.enter_context(subscribed(lead)) for _ in range(MAX - 1)]
            with subscribed(lead), subscribed(lead) as refused:
                assert not list(refused)
            wait_until(lambda: len(lead._service.watchers) < MAX)
            subscribers.append(stack.enter_context(subscribed(lead)))
            write(lead)
            for told in subscribers:
                texts = [event["id"] for name, event in until(told, "text", state="ends") if name == "text"]
                assert texts == [number + 1] * 2
        wait_until(lambda: not lead._service.watchers)


def test_one_that_does_not_read_is_ended_and_keeps_few_texts(
    make_lead: Callable[..., Lead], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = WeakSet[TextReader]()

    class Reader(TextReader):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            readers.add(self)

    monkeypatch.setattr(events, "TextReader", Reader)
    monkeypatch.setattr(events, "MAX_TEXTS", 5)
    request = b"GET /v1/duo/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lead = make_lead(alias="x" * 10_000_000, limits=Limits(read_s=600))  # a state fills all buffers
    with lead, connect(lead, request, window=4096) as hangs:
        wait_until(lambda: lead._service.watchers)
        for _ in range(10):
            write(lead)
        assert len(readers) in (5, 6)  # also the one whose event is being sent
        server: Any = lead._listener._server
        server.config.limits = Limits(read_s=0.1)
        wait_until(lambda: not lead._service.watchers)
        read_to_the_end(hangs)


def test_stop_ends_the_streams_and_no_other_begins(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 3600.0)  # it does not wait for the next poll
    with subscribed(lead) as told:
        until(told, "state")
        lead.stop()
        assert not list(told)
    with subscribed(lead) as refused:
        assert not list(refused)
