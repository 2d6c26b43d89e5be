"""A lead over a scripted engine, asked without a socket."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from duo.engine.engine import Engine
from duo.llama.chat_template import ChatTemplate
from duo.server.lead_server import Lead
from tests.scripted import ScriptedSlot, scripted_engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine, _ = scripted_engine()
    with engine:
        yield engine


@pytest.fixture
def slot(engine: Engine) -> ScriptedSlot:
    slot: Any = engine.slot
    assert isinstance(slot, ScriptedSlot)
    return slot


@pytest.fixture
def use(slot: ScriptedSlot) -> Callable[[str], None]:
    """Gives the model another chat template."""

    def use(source: str) -> None:
        slot.target.chat_template = slot.target.tool_template = ChatTemplate(source)

    return use


@pytest.fixture
def make_lead(engine: Engine) -> Iterator[Callable[..., Lead]]:
    """Makes leads for this engine."""
    with ExitStack() as stack:

        def make(**options: Any) -> Lead:
            lead = Lead(engine, port=0, **options)
            stack.callback(lead.close)
            return lead

        yield make


@pytest.fixture
def lead(make_lead: Callable[..., Lead]) -> Lead:
    return make_lead()


@pytest.fixture
def client(lead: Lead) -> TestClient:
    return client_of(lead)


def client_of(lead: Lead, **more: Any) -> TestClient:
    """Asks without a socket; faults of the server are answers."""
    return TestClient(lead.app, base_url="http://localhost", raise_server_exceptions=False, **more)


def metrics_of(client: TestClient) -> dict[str, float]:
    """Those of a lead that are not 0, by their names and the values of their labels."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    return {" ".join([one.name, *one.labels.values()]): one.value for one in samples if one.value}


def answer_of(client: TestClient, path: str, **fields: Any) -> dict[str, Any]:
    """The JSON of a whole answer."""
    response = client.post(path, json=ASKED | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return dict(response.json())


def chunks_of(client: TestClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Of a stream, all but the [DONE] at its end."""
    response = client.post(path, json=ASKED | fields | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache", "no")
    *lines, last, rest = response.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]
