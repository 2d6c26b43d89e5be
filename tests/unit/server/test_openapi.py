"""The OpenAPI document: complete, and about this lead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import duo
from duo.server.api import ChatRequest, CompletionRequest
from duo.server.lead import Lead
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

MakeLead = Callable[..., Lead]


def test_all_endpoints_are_described(make_lead: MakeLead) -> None:
    document = client_of(make_lead()).get("/openapi.json").json()
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", duo.__version__)
    post = {"/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/tokenize", "/detokenize"}
    post.add("/apply-template")
    get = {
        "/v1/health",
        "/health",
        "/metrics",
        "/openapi.json",
        "/v1/duo/events",
        "/v1/models",
        "/models",
        "/v1/models/{name}",
        "/props",
    }
    assert {path: set(item) for path, item in document["paths"].items()} == {
        **{path: {"post"} for path in post},
        **{path: {"get"} for path in get},
    }
    assert {*document["paths"]["/tokenize"]["post"]["responses"]} >= {"200", "400", "401", "404", "413", "503"}
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(chat) == {"application/json", "text/event-stream"}
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids) == len(document["paths"])


def test_the_fields_of_requests_are_those_of_the_structs(make_lead: MakeLead) -> None:
    document = client_of(make_lead()).get("/openapi.json").json()
    schemas: dict[str, Any] = document["components"]["schemas"]
    for kind in (ChatRequest, CompletionRequest):
        assert list(schemas[kind.__name__]["properties"]) == list(kind.__struct_fields__)
    referenced = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert referenced == set(schemas), "none is missing, none is unused"


def test_a_key_is_needed_and_described(make_lead: MakeLead) -> None:
    client = client_of(make_lead(api_keys=["sk-one"]))
    assert_error(client.get("/openapi.json"), 401)
    document = client.get("/openapi.json", headers={"Authorization": "Bearer sk-one"}).json()
    assert {name for item in document["security"] for name in item} == set(document["components"]["securitySchemes"])
    assert document["paths"]["/health"]["get"]["security"] == []
    assert client_of(make_lead()).get("/openapi.json").json()["security"] == []
