"""Bodies of requests, right, wrong and damaged: whatever a client sends is answered, and never with a 5xx."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from duo.server.api import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from duo.server.lead import Lead
from tests.fuzz.cases import cases
from tests.scripted import N_VOCAB, scripted_engine
from tests.unit.server.conftest import client_of

POST = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template")
DEEP = 100_000


@pytest.fixture(scope="module")
def lead() -> Iterator[Lead]:
    """JSON schemas and grammars have generators of their own."""
    engine, _ = scripted_engine()
    with engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr("duo.server.generation_request.schema_grammar", lambda *_: 'root ::= "a"')
        lead = Lead(engine, port=0, allowed_host=["testserver"])
        yield lead
        lead.close()


@pytest.fixture(scope="module")
def client(lead: Lead) -> TestClient:
    return client_of(lead)


@pytest.fixture(autouse=True)
def no_internal_errors(lead: Lead, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


class Twice(dict[str, Any]):
    """Items that are written again with other values."""

    def __init__(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        super().__init__(first)
        self.second = second

    def items(self) -> Any:
        return [*super().items(), *self.second.items()]


REQUESTS = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
FIELDS = sorted({"unknown", *(name for kind in REQUESTS for name in kind.__struct_fields__)})
NUMBERS = st.sampled_from([0, -1, 1, 0.5, 2**31, -(2**31), 2**32, 2**63, 2**64, 10**400, -(10**20), 1e308, 5e-324])
SPECIAL: st.SearchStrategy[Any] = st.sampled_from(
    [float("nan"), float("inf"), float("-inf"), True, False, None, "", [], {}]
)
TEXTS = st.one_of(
    st.text(), st.sampled_from(["\ud800", "\udfff\ud800", "\0", "\ufeff", "{{ 1/0 }}", "a" * 5000, "[DONE]"])
)
TOKENS = st.lists(st.one_of(st.integers(-2, N_VOCAB + 1), NUMBERS, SPECIAL, TEXTS), max_size=8)
LEAVES = st.one_of(NUMBERS, SPECIAL, TEXTS, st.integers(), st.floats())


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(LEAVES, st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4))


VALUES = nested(nested(nested(LEAVES)))
MESSAGES = st.lists(
    st.one_of(
        VALUES,
        st.fixed_dictionaries(
            {"role": TEXTS}, optional={"content": st.one_of(TEXTS, VALUES), "tool_calls": VALUES, "name": VALUES}
        ),
    ),
    max_size=4,
)
BIASES = st.one_of(NUMBERS, st.floats(-100, 100), st.booleans())
NAMES = st.sampled_from(["get_weather", "a", "b"]) | TEXTS
FUNCTIONS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": NAMES}, optional={"description": TEXTS, "parameters": VALUES | st.just({})}
)
TOOLS = st.lists(
    VALUES | st.fixed_dictionaries({"type": st.just("function"), "function": VALUES | FUNCTIONS}), max_size=3
)
RIGHT = {
    "prompt": st.one_of(TEXTS, TOKENS),
    "messages": MESSAGES,
    "content": TEXTS,
    "tokens": TOKENS,
    "logit_bias": st.dictionaries(st.one_of(TEXTS, st.integers(-1, N_VOCAB).map(str)), BIASES, max_size=4)
    | st.lists(st.tuples(st.one_of(TEXTS, st.integers(-1, N_VOCAB)), BIASES), max_size=4),
    "tools": TOOLS,
    "tool_choice": st.sampled_from(["auto", "none", "required"])
    | st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries({"name": NAMES})}),
    "stop": st.one_of(TEXTS, st.lists(TEXTS, max_size=4)),
    "stream": st.booleans(),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema", "xml"])},
        optional={"json_schema": VALUES, "schema": VALUES},
    ),
}


def fields(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: RIGHT[name] | VALUES if name in RIGHT else VALUES for name in names})


OBJECTS = st.lists(st.sampled_from(FIELDS), max_size=6, unique=True).flatmap(fields)
FEW = st.lists(st.sampled_from(FIELDS), max_size=1).flatmap(fields)
USUAL = st.fixed_dictionaries(
    {
        "prompt": st.text(min_size=1) | st.lists(st.integers(0, N_VOCAB - 1), min_size=1),
        "messages": st.lists(st.fixed_dictionaries({"role": st.text(), "content": st.text()}), min_size=1),
        "content": st.text(),
        "tokens": st.lists(st.integers(0, N_VOCAB - 1)),
        "max_tokens": st.integers(-1, 8),
    }
)
BODIES = st.one_of(
    USUAL,
    st.builds(lambda usual, more: usual | more, USUAL, FEW),
    st.builds(Twice, USUAL, FEW),
    st.builds(Twice, OBJECTS, USUAL),
    OBJECTS,
    VALUES,
).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
DAMAGES = st.sampled_from([*["none"] * 9, "cut", "byte", "BOM", "UTF-16", "escaped", "deep", "tail"])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A body, with one of the damages that JSON libraries differ in."""
    body, damage = draw(BODIES), draw(DAMAGES)
    at = draw(st.integers(0, len(body)))
    if damage == "cut":
        return body[:at]
    if damage == "byte":
        return body[:at] + draw(st.binary(max_size=4)) + body[at:]
    if damage == "BOM":
        return b"\xef\xbb\xbf" + body
    if damage == "UTF-16":
        return body.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass")
    if damage == "escaped":
        return json.dumps(json.loads(body.decode("utf-8", "surrogatepass"))).encode()
    if damage == "deep":
        name = draw(st.sampled_from(FIELDS))
        opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]))
        return b'{"%b": %b%b%b}' % (name.encode(), opening * DEEP, b"1", closing * draw(st.sampled_from([0, DEEP])))
    return body + draw(st.sampled_from([b"", b" ", b"\0", b"{}", b",", b"\xff"])) if damage == "tail" else body


@cases(5000)
@given(path=st.sampled_from(POST), body=damaged(), kind=st.sampled_from(["application/json", "text/plain", "", "x"]))
def test_any_body_is_answered(client: TestClient, path: str, body: bytes, kind: str) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": kind})
    event(f"status {answer.status_code} at {path}")
    assert answer.status_code in (200, 400, 413), answer.text[:500]
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(answer.content) < 10_000
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text.split("\n\n")[-3], answer.text[-500:]
    else:
        assert isinstance(answer.json(), dict)
