"""Texts that fail; and slow requests. Slow clients: see tests/attacks/test_bytes.py."""

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from duo.errors import DecodeError, UsageError
from duo.server import lead_server, requests
from duo.server.lead_server import Lead
from tests.scripted import N_STEP, TEXT, ScriptedModel, ScriptedSlot
from tests.serving import PATIENCE_S, assert_error, wait_until
from tests.unit.server.conftest import ASKED, CHAT, COMPLETIONS

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
    for stream in (False, True):
        answer = client.post(COMPLETIONS, json=ASKED | {"stream": stream})
        assert_error(answer, status, f"^{said}$")
        assert answer.json()["error"]["type"] == kind
    slot.error_at = 1
    assert_error(client.post(COMPLETIONS, json=ASKED), status, said)
    *_, text, event, done, _ = client.post(COMPLETIONS, json=ASKED | {"stream": True}).text.split("\n\n")
    assert json.loads(text.removeprefix("data: "))["choices"][0]["text"] == TEXT[:N_STEP]
    told = json.loads(event.removeprefix("data: "))["error"]
    assert (told["code"], told["type"], told["message"]) == (status, kind, said)
    assert done == "data: [DONE]"


def test_a_fault_is_logged_and_told_by_health_until_the_next_good_text(
    client: TestClient, slot: ScriptedSlot, caplog: pytest.LogCaptureFixture
) -> None:
    for error, status in ((RuntimeError("the sky is falling"), 500), (UsageError("a wrong grammar"), 500), (None, 200)):
        slot.error = error
        client.post(COMPLETIONS, json=ASKED)
        assert client.get("/health").status_code == status
        assert status == 200 or "the sky is falling" in client.get("/health").text
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("duo.engine", logging.ERROR)
    assert record.exc_info is not None


def test_others_are_answered_while_slow_requests_wait_and_few_do(
    make_lead: Callable[..., Lead], slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts and schemas wait for one another, however they end."""
    work = requests.RequestWork()
    monkeypatch.setattr(lead_server, "RequestWork", lambda: work)
    monkeypatch.setattr(requests, "MAX_SLOW", 4)
    slot.n_ctx = 2**20
    long, gate, begun = "a" * 100_000, threading.Event(), list[str]()
    tokenize = ScriptedModel.tokenize

    def wait(self: ScriptedModel, text: str, **options: bool) -> list[int]:
        if len(text) >= len(long):
            begun.append(text)
            assert gate.wait(PATIENCE_S)
        return tokenize(self, text, **options)

    monkeypatch.setattr(ScriptedModel, "tokenize", wait)
    slow: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"content": long}),
        (COMPLETIONS, {"prompt": long}),
        (CHAT, {"messages": [{"role": "user", "content": long}]}),
        (COMPLETIONS, {"prompt": long, "temperature": -1}),
    ]
    with make_lead() as lead, ThreadPoolExecutor() as pool:

        def status(path: str = COMPLETIONS, **fields: Any) -> int:
            asked = {"max_tokens": 0} | fields
            return httpx.post(lead.url + path, json=asked, timeout=PATIENCE_S).status_code

        for n in (1, 5):
            gate.clear()
            statuses = [pool.submit(status, path, **fields) for path, fields in slow]
            wait_until(lambda n=n: len(begun) == n and work.n_slow == 4)  # type: ignore[misc]
            assert (status(prompt="a"), status(prompt="a", json_schema={})) == (200, 503)
            assert len(begun) == n
            gate.set()
            assert sorted(one.result() for one in statuses) == [200, 200, 200, 400]
