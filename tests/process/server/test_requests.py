"""What one request to a real lead leaves for the next ones, and for those of others. Clients: see tests/clients."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.serving import LeadProcess, wait_until

PARIS = "The capital of France is"
FRUIT = "Name a fruit."


def answer(lead: LeadProcess, *said: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """The text of an answer in a chat that the user begins, and its usage."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    found = lead.post("/v1/chat/completions", messages=messages, **{"max_tokens": 24} | more).json()
    return found["choices"][0]["message"]["content"], found["usage"]


def test_a_second_turn_is_read_from_the_cache(lead: LeadProcess) -> None:
    first, usage = answer(lead, FRUIT)
    found = []
    for _ in range(2):
        found.append(answer(lead, FRUIT, first, "Another one, please."))
        lead.write("1, 2, 3,", 2)  # which leaves nothing of it in the cache
    (cached, others), (again, none) = found
    assert others["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"]
    assert none["prompt_tokens_details"]["cached_tokens"] == 0
    assert cached == again


def test_a_schema_holds_for_one_request(lead: LeadProcess) -> None:
    expected = answer(lead, FRUIT)[0]
    schema = {"type": "object", "properties": {"fruit": {"enum": ["apple", "pear"]}}, "required": ["fruit"]}
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": schema}}
    text, _ = answer(lead, FRUIT, max_tokens=48, temperature=1, seed=3, response_format=form)
    assert json.loads(text)["fruit"] in ("apple", "pear")
    assert answer(lead, FRUIT)[0] == expected


def nested(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nested(depth - 1), "minItems": 99} if depth else {"type": "string"}


ARRAY = {"type": "array", "items": {"type": "string"}, "minItems": 9999}
HOSTILE: list[dict[str, Any]] = [  # grammars: see tests/process/llama/test_grammar.py
    {"json_schema": {"anyOf": [{"type": "string", "maxLength": 9999}] * 1000}},
    {"json_schema": {"type": "string", "pattern": "^((a{0,9999}){0,9999}){0,9999}$"}},
    {"json_schema": {"properties": {f"p{i}": ARRAY for i in range(800)}}},
    {"json_schema": {"properties": {"x" * 5000: {"anyOf": [nested(12)] * 40}}}},
    {"grammar": 'root ::= "yes" a\na ::= b a "c" | "d"\nb ::= e\ne ::= "b" |', "max_tokens": 9},
    {"prompt": "word " * 1_000_000},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=range(len(HOSTILE)))
def test_a_request_that_could_exhaust_llama_cpp(lead: LeadProcess, fields: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"prompt": "a", "max_tokens": 1} | fields
    assert lead.post("/v1/completions", **asked).status_code in (200, 400)
    assert lead.write(PARIS, 2, grammar='root ::= "Ro" "me"') == "Rome"


def test_each_of_many_clients_gets_its_own_text_or_503(lead: LeadProcess) -> None:
    """While a text is being written whose client disconnects."""

    def ask(i: int) -> httpx.Response:
        return lead.post("/v1/completions", prompt="a", grammar=f'root ::= "client {i}"')

    asked = {"prompt": "a", "max_tokens": -1, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor(40) as pool:
        with httpx.stream("POST", f"{lead.url}/v1/completions", json=asked) as stream:
            next(stream.iter_lines())
            answers = [pool.submit(ask, i) for i in range(40)]
            wait_until(lambda: any(one.done() for one in answers))  # the queue is full
        found = dict(enumerate(one.result() for one in answers))
    texts = {i: one.json()["choices"][0]["text"] for i, one in found.items() if one.status_code == 200}
    refused = [one for i, one in found.items() if i not in texts]
    assert {(one.status_code, one.headers["Retry-After"]) for one in refused} == {(503, "1")}
    assert "the queue is full (8 requests)" in refused[0].text
    assert texts == {i: f"client {i}" for i in texts}
    assert len(texts) >= 8
