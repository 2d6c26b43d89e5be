"""Two hundred requests of different kinds at one lead: none is a fault of the server, and none keeps others waiting."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.http.listener import Limits
from duo.server.lead_server import Lead
from tests.attacks.judge import assert_serves, attack
from tests.raw_http import request
from tests.serving import wait_until

LIMITS = Limits(request_s=2.0, read_s=2.0, hello_s=2.0)
CLOSE = "Connection: close\r\n"


@pytest.fixture(scope="module")
def lead(engine: Engine) -> Iterator[Lead]:
    with Lead(engine, port=0, limits=LIMITS) as lead:
        yield lead


@pytest.fixture(autouse=True)
def unharmed(lead: Lead, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert_serves(lead)
    wait_until(lambda: lead.n_texts == 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# A request that nothing is wrong with, for each path, and what may be wrong with it

USER = {"role": "user", "content": "a"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [USER], "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/apply-template": {"messages": [USER]},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [65]},
}
TEXTS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
DEEP = 100_000
RAW: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half an object": b'{"prompt": "a"',
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "not UTF-8": b'{"prompt": "\xff"}',
    "half a surrogate": rb'{"prompt": "\ud800", "input": "\ud800", "content": "\ud800"}',
    "NUL": b'{"prompt": "\0"}',
    "deep lists": b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "no end": b"[" * DEEP,
    "no fields": b"{}",
}
# Of a text of any API
FIELDS: list[dict[str, Any]] = [
    {"temperature": -1}, {"temperature": 1e308}, {"top_p": 2}, {"top_k": -(2**40)}, {"min_p": "x"}, {"seed": 2**70},
    {"stop": [""]}, {"stop": ["a"] * 5000}, {"n": 0}, {"n_probs": 2**31}, {"logprobs": -1},
    {"logit_bias": {"999999": 1}}, {"logit_bias": {"x": 1}}, {"logit_bias": {"1": [1]}}, {"stream": "yes"},
    {"max_tokens": -5}, {"max_tokens": 2**63}, {"max_tokens": 0}, {"max_output_tokens": 0}, {"id_slot": 10**9},
    {"id_slot": -7}, {"duo": {"schedule": "x"}}, {"duo": {"n_draft": -1}}, {"speculative.n_max": 10**9},
    {"response_format": {"type": "x"}}, {"response_format": 5}, {"grammar": 5}, {"samplers": ["x"]},
    {"tools": [{}]}, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, {"tools": 300 * [{"type": "x"}]},
    {"tool_choice": "x"}, {"stream_options": 5}, {"model": "x" * 10_000}, {"metadata": {"a": {}}}, {"prompt": []},
    {"prompt": [10**9]}, {"messages": []}, {"messages": [{}]}, {"messages": [{"role": "x", "content": 5}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"input": []}, {"input": [{"type": "x"}]},
    {"system": 5}, {"thinking": {"type": "x"}}, {"reasoning": {"effort": "\r\nX: y"}},
]  # fmt: skip
LINES = [
    "GET /v1/models/%00 HTTP/1.1", "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1", "GET /page/%2e%2e/lead.py HTTP/1.1",
    "GET //evil.example/ HTTP/1.1", f"GET /{'a/' * 5000} HTTP/1.1", "GET /v1/models/ HTTP/1.1", "GET * HTTP/1.1",
    "GET /slots/0 HTTP/1.1", "POST /slots/99?action=save HTTP/1.1", "POST /slots/x?action=erase HTTP/1.1",
    "POST /slots/0?action=x HTTP/1.1", "POST /slots/0?action=restore HTTP/1.1", "POST /slots/%00?action=erase HTTP/1.1",
    "POST /health HTTP/1.1", "PUT /v1/models HTTP/1.1", "DELETE /slots HTTP/1.1", "TRACE / HTTP/1.1",
    "CONNECT localhost:1 HTTP/1.1", "OPTIONS * HTTP/1.1", "HEAD /v1/completions HTTP/1.1", "PATCH /props HTTP/1.1",
    "GET /v1/draft HTTP/1.1", "GET /?%ff=%00 HTTP/1.1", "GET /health?a=%0d%0aX:y HTTP/1.1", "FOO /health HTTP/1.1",
]  # fmt: skip
HEADERS = [
    "Content-Type: text/plain\r\n", "Content-Encoding: gzip\r\n", "Accept: x/y;q=9\r\n", "Expect: 200-ok\r\n",
    "X-Duo-Schedule: x\r\n", "X-Duo-Schedule: " + "x" * 5000 + "\r\n", "Accept-Encoding: gzip, br\r\n",
    "Range: bytes=0-1\r\n", "Authorization: Bearer x\r\n", "Cookie: " + "a=b; " * 2000 + "\r\n", "X: y\r\n" * 100,
    "If-None-Match: *\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n",
]  # fmt: skip
REQUESTS: dict[str, bytes] = {
    **{f"{path} {name}": request(path, body, more=CLOSE) for path, (name, body) in product(BODIES, RAW.items())},
    **{
        f"{path} {str(more)[:60]}": request(path, json.dumps(BODIES[path] | more).encode(), more=CLOSE)
        for i, more in enumerate(FIELDS)
        for path in (TEXTS[i % 4], TEXTS[(i + 1) % 4])
    },
    **{line[:60]: f"{line}\r\nHost: localhost\r\n{CLOSE}Content-Length: 2\r\n\r\n{{}}".encode() for line in LINES},
    **{header[:60]: request("/v1/completions", b'{"prompt": "a"}', more=CLOSE + header) for header in HEADERS},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_request(lead: Lead, name: str) -> None:
    assert attack(lead, REQUESTS[name]), "it is answered"


@pytest.mark.parametrize("path", [*BODIES, "/v1/messages"])
def test_what_is_needed_is_asked_for(lead: Lead, path: str) -> None:
    assert attack(lead, request(path, b"{}", more=CLOSE)) == [400]
