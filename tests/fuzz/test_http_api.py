"""Bodies of requests, right, wrong and damaged: whatever a client sends is answered, and never with a 5xx."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from duo.server.api import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from duo.server.lead_server import Lead
from tests.fuzz.cases import cases, damaged, dice, record
from tests.scripted import N_VOCAB, scripted_engine
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

POST = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template")
DEEP = 100_000


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """JSON schemas and grammars have generators of their own."""
    engine, _ = scripted_engine()
    with engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr("duo.server.generation_request.schema_grammar", lambda *_: 'root ::= "a"')
        lead = Lead(engine, port=0, allowed_host=["testserver"])
        yield client_of(lead)
        lead.close()


KINDS = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
FIELDS = sorted({"unknown"}.union(*(kind.__struct_fields__ for kind in KINDS)))
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [0, -1, 1, 0.5, 2**31, -(2**31), 2**32, 2**63, 2**64, 10**400, -(10**20), 1e308, 5e-324, float("nan"), float("inf"),
     float("-inf"), True, False, None, "", [], {}]
)  # fmt: skip
TEXTS = st.text() | st.sampled_from(["\ud800", "\udfff\ud800", "\0", "\ufeff", "{{ 1/0 }}", "a" * 5000, "[DONE]"])
TOKENS = st.lists(st.integers(-2, N_VOCAB + 1) | ODD | TEXTS, max_size=8)
VALUES = st.recursive(
    ODD | TEXTS | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["get_weather", "a", "b"]) | TEXTS
FUNCTIONS = VALUES | record({"description": TEXTS, "parameters": VALUES | st.just({})}, name=NAMES)
FORMATS = st.sampled_from(["text", "json_object", "json_schema", "xml"])
RIGHT = {
    "prompt": TEXTS | TOKENS,
    "messages": st.lists(VALUES | record({"content": TEXTS | VALUES, "tool_calls": VALUES}, role=TEXTS), max_size=4),
    "content": TEXTS,
    "tokens": TOKENS,
    "logit_bias": st.dictionaries(TEXTS | st.integers(-1, N_VOCAB).map(str), ODD | st.floats(-100, 100), max_size=4),
    "tools": st.lists(VALUES | record(type="function", function=FUNCTIONS), max_size=3),
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | record(type="function", function=record(name=NAMES)),
    "stop": TEXTS | st.lists(TEXTS, max_size=4),
    "stream": st.booleans(),
    "response_format": record({"json_schema": VALUES, "schema": VALUES}, type=FORMATS),
}


def fields(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: RIGHT.get(name, VALUES) | VALUES for name in names})


OBJECTS, FEW = (st.lists(st.sampled_from(FIELDS), max_size=n, unique=True).flatmap(fields) for n in (6, 1))
USUAL = record(
    prompt=st.text(min_size=1) | st.lists(st.integers(0, N_VOCAB - 1), min_size=1),
    messages=st.lists(record(role=st.text(), content=st.text()), min_size=1),
    content=st.text(),
    tokens=st.lists(st.integers(0, N_VOCAB - 1)),
    max_tokens=st.integers(-1, 8),
)
TWICE = (st.tuples(USUAL, FEW) | st.tuples(OBJECTS, USUAL)).map(  # the same fields with other values
    lambda both: ", ".join((json.dumps(both[0])[:-1], json.dumps(both[1])[1:]))
)
VALID = st.one_of(USUAL, st.builds(dict.__or__, USUAL, FEW), OBJECTS, VALUES)
TEXTS_OF_BODIES = st.builds(json.dumps, VALID, ensure_ascii=st.booleans()) | TWICE
NESTED = st.builds(
    lambda name, nest, n: f'{{"{name}": {nest[0] * DEEP}1{nest[1] * n}}}'.encode(),
    st.sampled_from(FIELDS),
    st.sampled_from([("[", "]"), ('{"a":', "}")]),
    st.sampled_from([0, DEEP]),
)
# Encoded and damaged in ways in which JSON libraries differ; most are right.
SOUND, OTHERS = (
    st.builds(str.encode, TEXTS_OF_BODIES, st.sampled_from(names), st.just("surrogatepass"))
    for names in (["utf-8"], ["utf-8-sig", "utf-16"])
)
DAMAGED = st.builds(damaged, dice, SOUND, st.just((b" ", b"\0", b"{}", b",", b"\xff")))
BODIES = st.integers(0, 15).flatmap(lambda n: {0: NESTED, 1: OTHERS, 2: DAMAGED, 3: DAMAGED}.get(n, SOUND))


@cases(5000)
@given(path=st.sampled_from(POST), body=BODIES, kind=st.sampled_from(["application/json", "text/plain", "", "x"]))
def test_any_body_is_answered(client: TestClient, path: str, body: bytes, kind: str) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code in (200, 400, 413), answer.text[:500]
    if answer.status_code != 200:
        assert_error(answer, answer.status_code)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text.split("\n\n")[-3], answer.text[-500:]
    else:
        assert isinstance(answer.json(), dict)
