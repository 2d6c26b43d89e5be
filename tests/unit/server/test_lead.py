"""Who may ask a lead, its life, what it tells a program, its metrics and page. Endpoints: see tests/process/server."""

import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.engine.engine import Engine
from duo.engine.request import Request
from duo.errors import UsageError
from duo.server.lead_server import Lead
from duo.speculation.types import Step
from tests.scripted import N_STEP, TEXT, ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import client_of, metrics_of

MakeLead = Callable[..., Lead]


def write(client: TestClient) -> Any:
    return client.post("/v1/completions", json={"prompt": "a"})


# CORS and keys, of which tests/unit/http/test_guard.py has the rules


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
    texts: list[Request] = []
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


# Recorder, as Prometheus reads them


def test_a_text_is_counted(client: TestClient) -> None:
    for n in (9, 9, -1):
        client.post("/v1/completions", json={"prompt": "abcdef", "max_tokens": n})
    found = metrics_of(client)
    n_end = len(TEXT) + 1
    assert {name: value for name, value in found.items() if "seconds" not in name} == {
        "llamacpp:prompt_tokens_total": 7 + 1 + 1,
        "duo:prompt_tokens_cached_total": 6 + 6,
        "llamacpp:tokens_predicted_total": 9 + 9 + n_end,
        "spec_decode_num_drafts_total": 3 + 3 + 10,
        "spec_decode_num_draft_tokens_total": 6 + 6 + 20,
        "spec_decode_num_accepted_tokens_total": 6 + 6 + 20,
        "spec_decode_num_accepted_tokens_per_pos_total 0": 3 + 3 + 10,
        "spec_decode_num_accepted_tokens_per_pos_total 1": 3 + 3 + 10,
        "duo:generations_total token limit": 2,
        "duo:generations_total end of text": 1,
    }
    assert n_end // N_STEP == 10
    assert sum("seconds" in name for name in found) == 5, "times and rates of prompts and texts, and waits"


def test_decodes_are_those_of_the_scheduler(client: TestClient, engine: Engine) -> None:
    engine.scheduler.n_decodes, engine.scheduler.n_busy = 4, 10
    found = metrics_of(client)
    assert (found["llamacpp:n_decode_total"], found["llamacpp:n_busy_slots_per_decode"]) == (4, 2.5)


def test_remote_drafts_are_counted(lead: Lead, client: TestClient) -> None:
    for what, n in (("joined", 5), ("stalled", 2), ("stale", 9), ("dropped: left", 3), ("refused: token", 4)):
        for _ in range(n):
            lead.drafts.count(what)
    assert metrics_of(client) == {
        "duo:worker_joins_total": 5,
        "duo:worker_stalls_total": 2,
        "duo:stale_candidates_total": 9,
        "duo:worker_drops_total left": 3,
        "duo:worker_refusals_total token": 4,
    }


# The page: see tests/browser

ASSETS = {file.name: file.read_bytes() for file in (files("duo.server") / "assets").iterdir()}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST_BYTES = 150_000


def test_all_files_are_served_without_a_key_and_cached_and_use_nothing_from_elsewhere(make_lead: MakeLead) -> None:
    client = client_of(make_lead(api_keys=["sk-one"]))
    assert_error(client.get("/page/../v1/models"), 401)
    for name, content in ASSETS.items():
        path = f"/page/{name}" if name != "index.html" else "/"
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, content)
        headers = answer.headers
        assert headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
        assert client.head(path).headers["content-length"] == str(len(content))
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules.pop("img-src") == "'self' data:"
        assert {"script-src", "style-src", "connect-src"} == {name for name in rules if rules[name] == "'self'"}
        nothing = {"default-src", "base-uri", "form-action", "frame-ancestors"}
        assert nothing == {name for name in rules if rules[name] == "'none'"}
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert ("set-cookie" in headers, headers["cache-control"]) == (False, "no-cache")
        for known, status in ((headers["etag"], 304), ('"other"', 200)):
            assert client.get(path, headers={"If-None-Match": known}).status_code == status


@pytest.mark.parametrize("name", ["lead.py", "..%2flead.py", "%2e%2e/lead.py", "%00", "x" * 5000, ""])
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert_error(client.get(f"/page/{name}"), 404)


def test_the_files_are_small_and_have_nothing_from_outside() -> None:
    assert sum(map(len, ASSETS.values())) <= MOST_BYTES
    for name, data in ASSETS.items():
        content = data.decode()
        assert {"http://www.w3.org"} >= set(re.findall(r"https?://[\w.]+", content)), name
        assert "import(" not in content, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.(write|cookie)|eval\(", content), name
