"""Who may ask a lead, its life, and what a program is told. Endpoints: see tests/process/server/curl.txt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.engine.engine import Engine
from duo.engine.request import TextRequest
from duo.errors import UsageError
from duo.server.lead_server import Lead
from duo.spec.types import Step
from tests.scripted import TEXT, ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

MakeLead = Callable[..., Lead]


def write(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/completions", json={"prompt": "a"} | fields)


# CORS and keys, of which tests/unit/link/test_guard.py has the rules


def test_pages_of_allowed_origins_may_ask(make_lead: MakeLead) -> None:
    origin, key = "https://chat.example", {"Authorization": "Bearer sk-one"}
    client = client_of(make_lead(cors_origins=[f"{origin}/"], api_keys=["sk-one"]))
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    for given, path, headers, status in (
        ("OPTIONS", "/v1/chat/completions", wanted, 200),
        ("GET", "/v1/models", key, 200),
        ("GET", "/v1/models", {}, 401),
    ):
        answer = client.request(given, path, headers={"Origin": origin} | headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin)
    assert "X-Duo-Warning" in answer.headers["access-control-expose-headers"]
    for given, path, headers, status in (("OPTIONS", "/v1/models", wanted, 400), ("GET", "/v1/models", key, 403)):
        answer = client.request(given, path, headers={"Origin": f"{origin}.evil"} | headers)
        assert answer.status_code == status
        assert "access-control-allow-origin" not in answer.headers


def test_where_others_connect_keys_and_tokens_are_needed(engine: Engine, make_lead: MakeLead) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "lead.example"):
        with pytest.raises(UsageError, match=rf"^host {host}: .* must send an API key") as raised:
            Lead(engine, host=host, port=0)
        assert raised.value.parameter == "host"
    for options, takes_drafts in (
        ({}, True),
        ({"api_keys": ["k"]}, False),
        ({"api_keys": ["k"], "back_token": "t"}, True),
        ({"back_token": "t"}, True),
    ):
        assert make_lead(**options).takes_drafts is takes_drafts


# From loading to stopping


def test_a_lead_without_an_engine_is_loading(engine: Engine) -> None:
    lead = Lead(port=0)
    client = client_of(lead)
    for answer in (client.get("/health"), client.get("/v1/models"), write(client)):
        assert_error(answer, 503, "^the model is still loading$")
        assert answer.headers["retry-after"] == "1"
    assert client.get("/metrics").status_code == 200
    lead.load(engine)
    assert write(client).json()["choices"][0]["text"] == TEXT
    lead.stop()
    lead.wait()
    assert_error(client.get("/health"), 503, "^the server is stopping$")
    lead.close()
    lead.close()
    assert engine.generate("a").text == TEXT, "the engine outlives its lead"


# What a program is told


def test_a_program_is_told_steps_and_texts(make_lead: MakeLead, slot: ScriptedSlot) -> None:
    steps: list[Step] = []
    texts: list[TextRequest] = []
    client = client_of(make_lead(on_step=steps.append, on_text=texts.append))
    write(client)
    assert "".join(step.text for step in steps) == TEXT
    assert texts == slot.requests
    assert texts[0].metrics.stop == "end of text"


def test_a_fault_of_the_server_is_logged_and_answered(
    client: TestClient, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot.target, "n_params", object())  # which is no JSON
    assert_error(client.get("/v1/models"), 500, "^internal error: TypeError$")
    assert "internal error at /v1/models" in caplog.text
