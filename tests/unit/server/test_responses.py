"""What a client is told about misspelt fields, unknown paths and wrong methods."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.server.lead import Lead
from duo.server.responses import WARNING_HEADER
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

HINT = 'unknown field "temprature": did you mean "temperature"?'
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ],
)
def test_a_misspelt_field_is_told_in_a_header(client: TestClient, path: str, fields: dict[str, Any]) -> None:
    answer = client.post(path, json=fields | {"temprature": 0.5})
    assert (answer.status_code, answer.headers[WARNING_HEADER]) == (200, HINT)
    assert WARNING_HEADER not in client.post(path, json=fields | {"cache_prompt": True}).headers


def test_it_is_told_of_large_requests_too(client: TestClient) -> None:
    """They are parsed on another thread."""
    answer = client.post("/tokenize", json={"content": "a" * 2**17, "with_piece": True})
    assert answer.headers[WARNING_HEADER] == 'unknown field "with_piece": did you mean "with_pieces"?'


def test_an_error_that_it_may_explain_quotes_it(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"mesages": MESSAGES})
    assert_error(answer, 400, r'^messages must not be empty \(unknown field "mesages": did you mean "messages"\?\)$')
    answer = client.post("/tokenize", json={"contents": "a"})
    assert_error(answer, 400, r'`content` \(unknown field "contents": did you mean "content"\?\)$')
    wrong = {"prompt": "a", "temprature": 1, "json_schema": {"type": "x" * 9000}}
    assert_error(client.post("/v1/completions", json=wrong), 400, re.escape(HINT))


def test_pages_may_read_the_header(make_lead: Callable[..., Lead]) -> None:
    client = client_of(make_lead(cors_origins=["https://chat.example"]))
    answer = client.get("/v1/models", headers={"Origin": "https://chat.example"})
    assert WARNING_HEADER in answer.headers["access-control-expose-headers"].split(", ")


def test_an_unknown_path_is_answered_with_the_endpoints(client: TestClient, lead: Lead) -> None:
    answer = client.post("/v1/embeddings", json={})
    assert_error(answer, 404, "^there is no '/v1/embeddings'; the endpoints are GET ")
    said = answer.json()["error"]["message"]
    assert said.endswith("; POST /v1/chat/completions, /v1/completions, /apply-template, /tokenize, /detokenize")
    for path in ("/v1/health", "/metrics", "/v1/duo/events", "/v1/models", "/v1/models/{name}", "/props"):
        assert path in said
    assert said.count("/models,") == 1
    assert "draft" not in said
    assert_error(client.get("/" + "x" * 5000), 404, "the endpoints are GET")


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/v1/completions", "/v1/completions does not accept 'GET': use POST"),
        ("POST", "/health", "/health does not accept 'POST': use GET or HEAD"),
        ("BREW" * 200, "/metrics", f"/metrics does not accept '{'BREW' * 5}': use GET or HEAD"),
    ],
)
def test_a_wrong_method_is_answered_with_the_right_ones(client: TestClient, method: str, path: str, said: str) -> None:
    assert_error(client.request(method, path), 405, f"^{re.escape(said)}$")
