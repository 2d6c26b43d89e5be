"""Bodies of requests, right, wrong and damaged: whatever a client sends is answered, and never with a 5xx."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from duo.server.api import ChatBody, CompletionBody, DetokenizeBody, LlamaBody, TokenizeBody
from duo.server.lead_server import Lead
from duo.server.messages_api import MessagesBody
from duo.server.responses_api import ResponsesBody
from tests.fuzz.cases import cases, damaged, dice, record
from tests.scripted import N_VOCAB, scripted_engine
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

DOORS = {"/v1/responses": "response.", "/v1/messages": "message_stop"}  # and how their last event begins
POST = (
    "/completion", "/v1/completions", "/v1/chat/completions", *DOORS, "/v1/messages/count_tokens", "/tokenize",
    "/detokenize", "/apply-template",
)  # fmt: skip
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


KINDS = (LlamaBody, CompletionBody, ChatBody, ResponsesBody, MessagesBody, TokenizeBody, DetokenizeBody)
FIELDS = sorted({"unknown"}.union(*(kind.__struct_encode_fields__ for kind in KINDS)))
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
TYPES = st.sampled_from(
    ["text", "thinking", "tool_use", "tool_result", "image", "message", "reasoning", "function_call", "input_text",
     "function_call_output", "output_text", "item_reference"]
)  # fmt: skip
ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | TEXTS
BLOCKS: st.SearchStrategy[Any] = st.deferred(
    lambda: record(
        {
            "text": TEXTS, "thinking": TEXTS, "content": TEXTS | st.lists(BLOCKS, max_size=3), "name": NAMES,
            "role": ROLES, "arguments": TEXTS | VALUES, "input": VALUES, "output": TEXTS | VALUES, "id": TEXTS,
            "call_id": TEXTS,
        },
        type=TYPES | TEXTS,
    )
)  # fmt: skip
FORMS = st.sampled_from(["text", "json_object", "json_schema", "xml"])
FORMATS = record({"json_schema": VALUES, "schema": VALUES | TEXTS, "name": TEXTS}, type=FORMS | TEXTS)
VLLM = {"json": VALUES | TEXTS, "regex": TEXTS, "choice": st.lists(TEXTS, max_size=3), "grammar": TEXTS}
RIGHT = {
    "prompt": TEXTS | TOKENS | st.lists(TEXTS | TOKENS, max_size=3),
    "n": st.integers(0, 3),
    "echo": st.booleans(),
    "logprobs": st.booleans() | st.integers(0, 20),
    "messages": st.lists(
        VALUES
        | record({"content": TEXTS | VALUES, "tool_calls": VALUES}, role=TEXTS)
        | record(role=ROLES, content=TEXTS | st.lists(BLOCKS, max_size=3)),
        max_size=4,
    ),
    "input": TEXTS | st.lists(VALUES | BLOCKS | record(role=ROLES, content=TEXTS), max_size=4),
    "system": TEXTS | st.lists(BLOCKS, max_size=2),
    "thinking": record({"budget_tokens": st.integers()}, type=st.sampled_from(["enabled", "disabled"])),
    "reasoning": record(effort=TEXTS | st.sampled_from(["none", "high"])),
    "text": TEXTS | record(format=FORMATS),
    "output_config": record({"effort": TEXTS}, format=FORMATS),
    "duo": st.booleans() | record({"schedule": TEXTS | st.sampled_from(["off", "sync"]), "lookup": st.booleans()}),
    "content": TEXTS,
    "tokens": TOKENS,
    "logit_bias": st.dictionaries(TEXTS | st.integers(-1, N_VOCAB).map(str), ODD | st.floats(-100, 100), max_size=4),
    "tools": st.lists(
        VALUES
        | record(type="function", function=FUNCTIONS)
        | record({"description": TEXTS, "parameters": VALUES, "input_schema": VALUES}, type="function", name=NAMES),
        max_size=3,
    ),
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | record(type="function", function=record(name=NAMES)),
    "stop": TEXTS | st.lists(TEXTS, max_size=4),
    "stream": st.booleans(),
    "response_format": FORMATS,
    "output_format": FORMATS,
    "structured_outputs": record(VLLM),
    **{f"guided_{name}": values for name, values in VLLM.items()},
}


def fields(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: RIGHT.get(name, VALUES) | VALUES for name in names})


OBJECTS, FEW = (st.lists(st.sampled_from(FIELDS), max_size=n, unique=True).flatmap(fields) for n in (6, 1))
USUAL = record(
    prompt=st.text(min_size=1) | st.lists(st.integers(0, N_VOCAB - 1), min_size=1) | st.lists(st.text(), min_size=1),
    messages=st.lists(record(role=ROLES, content=st.text()), min_size=1),
    input=st.text() | st.lists(record(role=ROLES, content=st.text()), min_size=1),
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


@cases(8000)
@given(path=st.sampled_from(POST), body=BODIES, kind=st.sampled_from(["application/json", "text/plain", "", "x"]))
def test_any_body_is_answered(client: TestClient, path: str, body: bytes, kind: str) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code in (200, 400, 413), answer.text[:500]
    if answer.status_code != 200:
        body_of_error = answer.json()
        assert ("type" in body_of_error) == path.startswith("/v1/messages")
        assert_error(answer, answer.status_code) if "type" not in body_of_error else None
    elif answer.headers["content-type"].startswith("text/event-stream"):
        events = answer.text.split("\n\n")
        if path in DOORS:
            assert events[-2].startswith(f"event: {DOORS[path]}"), events[-2]
            assert "event: error" not in answer.text
            assert "response.failed" not in events[-2]
        elif path == "/completion":
            assert '"stop":true,' in events[-2], events[-2]
        else:
            assert events[-2] == "data: [DONE]"
            assert '"error"' not in events[-3], answer.text[-500:]
    else:
        found = answer.json()
        several = found if path == "/completion" and isinstance(found, list) else [found]  # of prompts or choices
        assert several
        assert all(isinstance(one, dict) for one in several)
