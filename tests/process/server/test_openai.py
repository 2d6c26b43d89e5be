"""A real lead as the `openai` SDK sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.chat_templates import HERMES
from tests.command import ONE_EACH, duo
from tests.gguf_files import with_chat_template
from tests.serving import PATIENCE_S, LeadProcess, wait_until

PARIS = "The capital of France is"
ADDITION = "What is 2+2? Answer with a number."
FRUIT = "Name a fruit."
N_CTX = 512
LONG: Any = {"ignore_eos": True}


class Client(openai.OpenAI):
    """Asks one lead, once."""

    def __init__(self, lead: LeadProcess) -> None:
        super().__init__(base_url=f"{lead.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S)

    def complete(self, prompt: Any = PARIS, most: int = 8, **more: Any) -> Completion:
        answer = self.completions.create(model="", prompt=prompt, max_tokens=most, **more)
        assert isinstance(answer, Completion)
        return answer

    def write(self, prompt: Any = PARIS, most: int = 8, **more: Any) -> str:
        return self.complete(prompt, most, **more).choices[0].text

    def answer(self, *said: str, most: int = 24, **more: Any) -> ChatCompletion:
        """The user begins, the assistant answers."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
        asked: dict[str, Any] = {"model": "", "messages": messages, "max_tokens": most} | more
        answer = self.chat.completions.create(**asked)
        assert isinstance(answer, ChatCompletion)
        return answer

    def say(self, *said: str, **more: Any) -> str:
        return self.answer(*said, **more).choices[0].message.content or ""


@pytest.fixture(scope="module")
def client(lead: LeadProcess) -> Iterator[Client]:
    with Client(lead) as client:
        yield client


def tokenize(lead: LeadProcess, text: str) -> list[int]:
    return list(lead.post("/tokenize", content=text).json()["tokens"])


def test_a_chat_is_answered_as_by_the_command(client: Client, demo_pair: tuple[Path, Path]) -> None:
    run = duo("-m", demo_pair[0], "--chat", "-p", ADDITION, "-n", "24", "--exact", *ONE_EACH)
    assert run.status == 0
    whole = client.answer(ADDITION)
    assert whole.choices[0].message.content == run.text
    assert "4" in run.text
    asked: dict[str, Any] = {"model": demo_pair[0].stem, "messages": [{"role": "user", "content": ADDITION}]}
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == run.text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    (model,) = client.models.list().data
    assert client.models.retrieve(demo_pair[0].stem) == model


def test_usage_timings_and_metrics_agree(client: Client, lead: LeadProcess) -> None:
    wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)
    before, prompt = lead.metrics(), "No test has asked this before:"
    n_prompt = len(tokenize(lead, prompt))
    verified = accepted = 0
    for n_cached in (0, n_prompt - 1):
        answer = client.complete(prompt, most=12, extra_body=LONG)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (n_prompt, 12)
        assert answer.usage.prompt_tokens_details.cached_tokens == n_cached
        timings = (answer.model_extra or {})["timings"]
        assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (n_cached, n_prompt - n_cached, 12)
        verified, accepted = verified + timings.get("draft_n", 0), accepted + timings.get("draft_n_accepted", 0)
    after = lead.metrics()
    for name, added in {
        "llamacpp:prompt_tokens_total": n_prompt + 1,
        "duo:prompt_tokens_cached_total": n_prompt - 1,
        "llamacpp:tokens_predicted_total": 24,
        "spec_decode_num_draft_tokens_total": verified,
        "spec_decode_num_accepted_tokens_total": accepted,
        'duo:generations_total{stop="token limit"}': 2,
    }.items():
        assert after[name] - before.get(name, 0) == added, name


def test_a_second_turn_is_read_from_the_cache(client: Client) -> None:
    first = client.answer(FRUIT)
    said = (FRUIT, first.choices[0].message.content or "", "Another one, please.")
    texts, n_cached = [], []
    for _ in range(2):
        second = client.answer(*said)
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        n_cached.append(second.usage.prompt_tokens_details.cached_tokens or 0)
        texts.append(second.choices[0].message.content)
        client.write("1, 2, 3,", most=2)  # which leaves nothing of it in the cache
    assert first.usage is not None
    assert n_cached[0] >= first.usage.prompt_tokens
    assert n_cached[1] == 0
    assert texts[0] == texts[1]


def test_a_full_context_ends_the_text(client: Client) -> None:
    for n_prompt in (N_CTX - 8, N_CTX):
        answer = client.complete([100] * n_prompt, most=-1, extra_body=LONG)
        assert answer.usage is not None
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.total_tokens == N_CTX + 1, "as many as fit, and one more that is not decoded"


def test_sampling(client: Client, lead: LeadProcess) -> None:
    texts = [client.write("A fruit:", most=6, temperature=1, seed=seed) for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 2
    assert len({client.write("A fruit:", most=6, temperature=1.2) for _ in range(3)}) > 1
    assert client.write("A fruit:", most=6, temperature=1, top_p=0, seed=2) == client.write("A fruit:", most=6)
    (wanted,) = tokenize(lead, " Rome")
    assert client.write(most=2, logit_bias={str(wanted): 100}) == " Rome Rome"
    ones = client.write("1, 1, 1, 1, 1, 1,", most=8)
    assert client.write("1, 1, 1, 1, 1, 1,", most=8, frequency_penalty=50).count(" 1") < ones.count(" 1")


FRUITS = {
    "type": "object",
    "properties": {"fruit": {"enum": ["apple", "pear"]}, "ripe": {"type": "boolean"}},
    "required": ["fruit", "ripe"],
    "additionalProperties": False,
}


def test_a_schema_or_grammar_holds_for_one_request(client: Client) -> None:
    expected = client.say(FRUIT)
    form: Any = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": FRUITS}}
    answer = client.answer(FRUIT, most=48, temperature=1, seed=3, response_format=form)
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert (found["fruit"] in ("apple", "pear"), type(found["ripe"])) == (True, bool)
    assert client.say(FRUIT, response_format={"type": "json_object"}).startswith("{")
    grammar = {"grammar": 'root ::= "🙂🎉"'}
    with client.completions.create(model="", prompt=PARIS, stream=True, extra_body=grammar) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == "🙂🎉"
    assert client.say(FRUIT) == expected


def nested(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nested(depth - 1), "minItems": 99} if depth else {"type": "string"}


ARRAY = {"type": "array", "items": {"type": "string"}, "minItems": 9999}
HOSTILE: dict[str, dict[str, Any]] = {  # grammars: see tests/process/llama/test_grammar.py
    "many strings": {"json_schema": {"anyOf": [{"type": "string", "maxLength": 9999}] * 1000}},
    "nested repetitions": {"json_schema": {"type": "string", "pattern": "^((a{0,9999}){0,9999}){0,9999}$"}},
    "large arrays": {"json_schema": {"properties": {f"p{i}": ARRAY for i in range(800)}}},
    "a long name": {"json_schema": {"properties": {"x" * 5000: {"anyOf": [nested(12)] * 40}}}},
    "recursion": {"grammar": 'root ::= "yes" a\na ::= b a "c" | "d"\nb ::= e\ne ::= "b" |', "max_tokens": 9},
    "long prompt": {"prompt": "word " * 1_000_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_request_that_could_exhaust_llama_cpp(lead: LeadProcess, name: str) -> None:
    fields: dict[str, Any] = {"prompt": "a", "max_tokens": 1} | HOSTILE[name]
    assert lead.post("/v1/completions", **fields).status_code in (200, 400)
    assert lead.write(PARIS, 2, grammar='root ::= "Ro" "me"') == "Rome"


# Many clients, and those that disconnect


@contextmanager
def writing(client: Client, lead: LeadProcess) -> Iterator[openai.Stream[Completion]]:
    """While a text is being written that ends when the context is full, or its client has disconnected."""
    with client.completions.create(model="", prompt=PARIS, max_tokens=-1, stream=True, extra_body=LONG) as stream:
        next(iter(stream))
        yield stream
    wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)


def test_each_of_many_clients_gets_its_own_text_or_503(lead: LeadProcess, client: Client) -> None:
    async def ask_all(stream: openai.Stream[Completion]) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{lead.url}/v1", api_key="any", max_retries=0) as many:

            async def ask(i: int) -> Any:
                grammar = {"grammar": f'root ::= "client {i}"'}
                try:
                    return await many.completions.create(model="", prompt="a", extra_body=grammar)
                except openai.InternalServerError as error:
                    stream.close()
                    return error.response

            return list(await asyncio.gather(*(ask(i) for i in range(40))))

    with writing(client, lead) as stream:
        answers = asyncio.run(ask_all(stream))
    refused = [answer for answer in answers if not isinstance(answer, Completion)]
    assert {(answer.status_code, answer.headers["Retry-After"]) for answer in refused} == {(503, "1")}
    texts = {i: answer.choices[0].text for i, answer in enumerate(answers) if isinstance(answer, Completion)}
    assert texts == {i: f"client {i}" for i in texts}
    assert len(texts) >= 8


# Tools: calls that a grammar constrains

CITIES = ["Oslo", "Rome", "Lima"]
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["city"],
    "$defs": {"City": {"enum": CITIES}},
}


def test_calls_of_a_tool(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = with_chat_template(demo_pair[1], tmp_path / "hermes.gguf", HERMES)
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "description": "It", "parameters": WEATHER}}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    with LeadProcess(target, "-c", "2048", "--exact") as lead, Client(lead) as client:
        quiet: Any = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}, "tool_choice": named}
        asked: dict[str, Any] = {"model": "", "tools": tools, "max_tokens": 256}
        chats: Any = client.chat.completions  # not typed: mypy cannot choose an overload for fields in a dict
        answer = chats.create(messages=[{"role": "user", "content": "Hi"}], **asked, **quiet)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        found = json.loads(call.function.arguments)
        assert found["city"] in CITIES
        assert all(isinstance(day, bool) for day in found.get("days", []))

        # A model that may call does as it did before.
        function = {"name": "get_weather", "arguments": json.dumps({"city": "Rome"})}
        called = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
        history: Any = [{"role": "user", "content": "The weather in Rome?"}, called] * 3
        (choice,) = chats.create(messages=[*history, history[0]], **asked).choices
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments)["city"] == "Rome"
