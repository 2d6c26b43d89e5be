"""A real lead as the `openai` SDK sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.command import ONE_EACH
from tests.serving import PATIENCE_S, LeadProcess, wait_until
from tests.unit.cli import runner

PARIS = "The capital of France is"
ADDITION = "What is 2+2? Answer with a number."
FRUIT = "Name a fruit."
LONG: Any = {"ignore_eos": True}


class Client:
    """Asks one lead, once. Without the SDK's types, whose overloads do not take fields in a dict."""

    def __init__(self, lead: LeadProcess) -> None:
        self.sdk: Any = openai.OpenAI(base_url=f"{lead.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S)

    def complete(self, prompt: Any = PARIS, most: int = 8, **more: Any) -> Any:
        return self.sdk.completions.create(model="", prompt=prompt, max_tokens=most, **more)

    def answer(self, *said: Any, most: int = 24, **more: Any) -> Any:
        """The user begins, the assistant answers; or messages."""
        messages = [
            text if isinstance(text, dict) else {"role": ("user", "assistant")[i % 2], "content": text}
            for i, text in enumerate(said)
        ]
        return self.sdk.chat.completions.create(**{"model": "", "messages": messages, "max_tokens": most} | more)

    def say(self, *said: str, **more: Any) -> str:
        return str(self.answer(*said, **more).choices[0].message.content)


@pytest.fixture(scope="module")
def client(lead: LeadProcess) -> Iterator[Client]:
    client = Client(lead)
    with client.sdk:
        yield client


def test_a_chat_is_answered_as_by_the_command(client: Client, demo_pair: tuple[Path, Path]) -> None:
    run = runner.duo("-m", demo_pair[0], "--chat", "-p", ADDITION, "-n", "24", "--exact", *ONE_EACH)
    assert run.status == 0
    whole, name = client.answer(ADDITION), demo_pair[0].stem
    assert whole.choices[0].message.content == run.text
    assert "4" in run.text
    with client.answer(ADDITION, model=name, stream=True, stream_options={"include_usage": True}) as stream:
        *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == run.text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last.usage.total_tokens == whole.usage.total_tokens
    (model,) = client.sdk.models.list().data
    assert client.sdk.models.retrieve(name) == model


def test_a_second_turn_is_read_from_the_cache(client: Client) -> None:
    first = client.answer(FRUIT)
    said = (FRUIT, first.choices[0].message.content, "Another one, please.")
    texts, n_cached = [], []
    for _ in range(2):
        second = client.answer(*said)
        n_cached.append(second.usage.prompt_tokens_details.cached_tokens)
        texts.append(second.choices[0].message.content)
        client.complete("1, 2, 3,", most=2)  # which leaves nothing of it in the cache
    assert n_cached[0] >= first.usage.prompt_tokens
    assert n_cached[1] == 0
    assert texts[0] == texts[1]


def test_a_schema_or_grammar_holds_for_one_request(client: Client) -> None:
    expected = client.say(FRUIT)
    schema = {"type": "object", "properties": {"fruit": {"enum": ["apple", "pear"]}}, "required": ["fruit"]}
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": schema}}
    (choice,) = client.answer(FRUIT, most=48, temperature=1, seed=3, response_format=form).choices
    assert choice.finish_reason == "stop"
    assert json.loads(choice.message.content)["fruit"] in ("apple", "pear")
    assert client.say(FRUIT) == expected


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


def test_each_of_many_clients_gets_its_own_text_or_503(lead: LeadProcess, client: Client) -> None:
    """While a text is being written that ends when the context is full, or its client has disconnected."""

    async def ask_all(stream: Any) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{lead.url}/v1", api_key="any", max_retries=0) as many:

            async def ask(i: int) -> Any:
                grammar = {"grammar": f'root ::= "client {i}"'}
                try:
                    return (await many.completions.create(model="", prompt="a", extra_body=grammar)).choices[0].text
                except openai.InternalServerError as error:
                    stream.close()
                    return error.response

            return list(await asyncio.gather(*(ask(i) for i in range(40))))

    with client.complete(most=-1, stream=True, extra_body=LONG) as stream:
        next(iter(stream))
        answers = asyncio.run(ask_all(stream))
    wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)
    refused = [answer for answer in answers if not isinstance(answer, str)]
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in refused} == {(503, "1")}
    assert "the queue is full (8 requests)" in refused[0].text
    texts = {i: text for i, text in enumerate(answers) if isinstance(text, str)}
    assert texts == {i: f"client {i}" for i in texts}
    assert len(texts) >= 8
