"""Clients that disconnect, read slowly or send slowly; texts that fail; the queue and its limit."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.errors import DecodeError, UsageError
from duo.server.lead_server import Lead
from duo.server.parse_request import MAX_BODY
from tests.scripted import N_STEP, TEXT, ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import metrics_of
from tests.unit.server.exchange import Exchange, until

pytestmark = pytest.mark.anyio
LONG: dict[str, Any] = {"prompt": "a", "max_tokens": -1, "ignore_eos": True}
STREAM = LONG | {"stream": True}


def error_of(body: bytes) -> dict[str, Any]:
    return dict(json.loads(body)["error"])


# Clients that disconnect


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_ends_the_text(lead: Lead, client: TestClient, slot: ScriptedSlot, stream: bool) -> None:
    slot.hold(n_free=1)
    exchange = Exchange(lead.app, **LONG, stream=stream)
    if stream:
        assert await exchange.status() == 200
        assert (await exchange.event())["choices"][0]["text"] == TEXT[:N_STEP]
    else:
        await until(lambda: slot.requests)
    exchange.disconnect()
    await exchange.task
    await until(lambda: lead.n_texts == 0)
    assert slot.requests[0].cancelled.is_set()
    found = metrics_of(client)
    assert (found["duo:generations_total interrupted"], found["llamacpp:tokens_predicted_total"]) == (1, N_STEP)


# Slow clients


async def test_a_body_that_is_too_large_is_not_read(lead: Lead) -> None:
    chunked = Exchange(lead.app, "/tokenize")
    for _ in range(20):
        chunked.send(bytes(2**20))
    chunked.send(b"", more=False)
    assert await chunked.status() == 413
    assert str(MAX_BODY) in error_of(await chunked.body())["message"]
    assert chunked.n_received == MAX_BODY + 2**20


# Texts that fail

FAULTS = [
    (UsageError("the grammar is invalid"), 400, "invalid_request_error", "the grammar is invalid"),
    (DecodeError("no memory"), 500, "server_error", "the generation failed: no memory"),
    (RuntimeError("the sky is falling"), 500, "server_error", "the generation failed: the sky is falling"),
]


@pytest.mark.parametrize(("error", "status", "kind", "said"), FAULTS, ids=["usage", "decode", "fault"])
def test_an_error_has_a_status_or_is_the_last_event(
    client: TestClient, slot: ScriptedSlot, error: Exception, status: int, kind: str, said: str
) -> None:
    slot.error = error
    for fields in (LONG, STREAM):
        answer = client.post("/v1/completions", json=fields)
        assert_error(answer, status, f"^{said}$")
        assert answer.json()["error"]["type"] == kind
    slot.error_at = 1
    assert_error(client.post("/v1/completions", json=LONG), status, said)
    *_, text, event, done, _ = client.post("/v1/completions", json=STREAM).text.split("\n\n")
    assert json.loads(text.removeprefix("data: "))["choices"][0]["text"] == TEXT[:N_STEP]
    told = json.loads(event.removeprefix("data: "))["error"]
    assert (told["code"], told["type"], told["message"]) == (status, kind, said)
    assert done == "data: [DONE]"


def test_a_fault_is_logged_and_told_by_health_until_the_next_good_text(
    client: TestClient, slot: ScriptedSlot, caplog: pytest.LogCaptureFixture
) -> None:
    slot.error = RuntimeError("the sky is falling")
    client.post("/v1/completions", json=LONG)
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.name.startswith("duo.")
    assert record.exc_info is not None
    assert_error(client.get("/health"), 500, "the sky is falling")
    slot.error = UsageError("a wrong grammar")
    client.post("/v1/completions", json=LONG)
    assert client.get("/health").status_code == 500
    slot.error = None
    client.post("/v1/completions", json={"prompt": "a"})
    assert client.get("/health").json() == {"status": "ok"}
    assert len(caplog.records) == 1


# The queue


async def test_a_full_queue_answers_503(make_lead: Callable[..., Lead], slot: ScriptedSlot) -> None:
    lead = make_lead(n_queue=1)
    slot.hold()
    texts = []
    for n in (1, 2):
        texts.append(Exchange(lead.app, prompt="a"))
        await until(lambda n=n: lead.n_texts == n)  # type: ignore[misc]
    refused = Exchange(lead.app, prompt="a")
    start = await refused.sent.get()
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    assert "1 requests" in error_of(await refused.body())["message"]
    slot.go_on()
    assert [await text.status() for text in texts] == [200, 200]


async def test_stopping_ends_streams_with_an_event_and_refuses_those_that_wait(lead: Lead, slot: ScriptedSlot) -> None:
    slot.hold(n_free=1)
    streamed = Exchange(lead.app, **STREAM)
    assert await streamed.status() == 200
    await streamed.event()
    waiting = Exchange(lead.app, **LONG)
    await until(lambda: lead.n_texts == 2)
    lead.stop()
    told = await streamed.event()
    assert (told["error"]["code"], told["error"]["message"]) == (503, "the server is stopping")
    assert (await streamed.body()).startswith(b"data: [DONE]")
    assert await waiting.status() == 503
    assert error_of(await waiting.body())["type"] == "unavailable_error"
