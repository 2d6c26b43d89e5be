"""The lead as the `openai` SDK sees it, and what llama-server's clients expect besides."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam

from tests.command import ONE_EACH, SLOW_TARGET, duo
from tests.serving import PATIENCE_S, LeadProcess

KEY = "any"  # leads without keys take each
CONTEXT = ("--ctx-size", "512")
PARIS = "The capital of France is"
ADDITION = "What is 2+2? Answer with a number."
FRUIT = "Name a fruit."
EMOJI = "🙂🎉"
N_CTX = 512


class Client(openai.OpenAI):
    """Asks one lead, once."""

    def __init__(self, lead: LeadProcess, **more: Any) -> None:
        settings: dict[str, Any] = {"api_key": KEY, "max_retries": 0, "timeout": PATIENCE_S} | more
        super().__init__(base_url=f"{lead.url}/v1", **settings)

    def complete(self, prompt: str = PARIS, most: int = 8, **more: Any) -> Completion:
        answer = self.completions.create(model="", prompt=prompt, max_tokens=most, **more)
        assert isinstance(answer, Completion)
        return answer

    def write(self, prompt: str = PARIS, most: int = 8, **more: Any) -> str:
        return self.complete(prompt, most, **more).choices[0].text

    def chat_with(self, *said: str, most: int = 24, **more: Any) -> ChatCompletion:
        answer = self.chat.completions.create(model="", messages=turns(*said), max_tokens=most, **more)
        assert isinstance(answer, ChatCompletion)
        return answer

    def say(self, *said: str, most: int = 24, **more: Any) -> str:
        return self.chat_with(*said, most=most, **more).choices[0].message.content or ""

    def stream_chat(self, *said: str, most: int = 24, **more: Any) -> list[ChatCompletionChunk]:
        with self.chat.completions.create(
            model="", messages=turns(*said), max_tokens=most, stream=True, **more
        ) as stream:
            return list(stream)

    def stream_text(self, prompt: str = PARIS, most: int = 8, **more: Any) -> list[Completion]:
        with self.completions.create(model="", prompt=prompt, max_tokens=most, stream=True, **more) as stream:
            return list(stream)


def turns(*said: str) -> list[ChatCompletionMessageParam]:
    """The user begins, the assistant answers."""
    return [
        {"role": "assistant", "content": text} if i % 2 else {"role": "user", "content": text}
        for i, text in enumerate(said)
    ]


def joined(chunks: list[Completion]) -> str:
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def joined_chat(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def counts(lead: LeadProcess) -> dict[str, float]:
    """The value of each metric, by its name and labels, once all requests are answered."""
    wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)
    lines = httpx.get(f"{lead.url}/metrics", timeout=PATIENCE_S).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


@contextmanager
def is_writing(client: Client, lead: LeadProcess) -> Iterator[openai.Stream[Completion]]:
    """While a text is being written that ends only when the context is full, unless it is left."""
    more: Any = {"ignore_eos": True}
    with client.completions.create(model="", prompt=PARIS, max_tokens=-1, stream=True, extra_body=more) as stream:
        next(iter(stream))
        yield stream
    # Whoever comes next finds the lead idle.
    wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    target, draft = demo_pair
    with LeadProcess(target, "-md", draft, "-td", "1", *CONTEXT, "--exact") as process:
        yield process


@pytest.fixture(scope="module")
def client(lead: LeadProcess) -> Iterator[Client]:
    with Client(lead) as client:
        yield client


@pytest.fixture(scope="module")
def slow(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    """Needs half a minute to fill its context; one request may wait."""
    with LeadProcess(demo_pair[1], *CONTEXT, "--queue", "1", before=SLOW_TARGET) as process:
        yield process


# Texts


def test_a_completion_is_what_duo_writes(client: Client, demo_pair: tuple[Path, Path]) -> None:
    run = duo("-m", demo_pair[0], "-p", PARIS, "-n", "16", "--exact", *ONE_EACH)
    assert run.status == 0
    assert client.write(most=16) == run.text
    assert "Paris" in run.text


def test_an_answer_is_what_duo_writes_in_a_chat(client: Client, demo_pair: tuple[Path, Path]) -> None:
    run = duo("-m", demo_pair[0], "--chat", "-p", ADDITION, "-n", "24", "--exact", *ONE_EACH)
    assert run.status == 0
    assert client.say(ADDITION) == run.text
    assert "4" in run.text


def test_the_shape_of_a_completion(client: Client, demo_pair: tuple[Path, Path]) -> None:
    answer = client.complete(most=8)
    (choice,) = answer.choices
    assert (answer.object, answer.model) == ("text_completion", demo_pair[0].stem)
    assert answer.id.startswith("cmpl-")
    assert answer.id != client.complete(most=8).id
    assert (choice.index, choice.logprobs, choice.finish_reason) == (0, None, "length")


def test_the_shape_of_a_chat(client: Client, demo_pair: tuple[Path, Path]) -> None:
    answer = client.chat_with(ADDITION)
    (choice,) = answer.choices
    assert (answer.object, answer.model) == ("chat.completion", demo_pair[0].stem)
    assert answer.id.startswith("chatcmpl-")
    assert (choice.index, choice.logprobs, choice.finish_reason) == (0, None, "stop")
    assert choice.message.role == "assistant"
    assert choice.message.tool_calls is None


def test_usage_and_timings_agree(client: Client) -> None:
    whole, again = (
        client.complete("Whatever nobody has asked before:", most=12, extra_body={"ignore_eos": True}) for _ in range(2)
    )
    for answer, n_cached in ((whole, 0), (again, whole.usage.prompt_tokens - 1 if whole.usage else None)):
        usage, extra = answer.usage, answer.model_extra
        assert usage is not None
        assert extra is not None
        assert usage.completion_tokens == 12
        assert usage.total_tokens == usage.prompt_tokens + 12
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == n_cached
        timings = extra["timings"]
        assert (timings["cache_n"], timings["predicted_n"]) == (n_cached, 12)
        assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
        assert 0 <= timings.get("draft_n_accepted", 0) <= timings.get("draft_n", 0)
        for name in ("prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"):
            assert timings[name] > 0


def test_prompts_are_counted_as_they_are_tokenised(client: Client, lead: LeadProcess) -> None:
    tokens = lead.post("/tokenize", content=PARIS).json()["tokens"]
    usage = client.complete(most=1).usage
    assert usage is not None
    assert usage.prompt_tokens == len(tokens)


def test_a_prompt_of_tokens(client: Client, lead: LeadProcess) -> None:
    tokens = lead.post("/tokenize", content=PARIS).json()["tokens"]
    expected = client.write(most=8)
    for prompt in (tokens, [PARIS]):
        answer = client.completions.create(model="", prompt=prompt, max_tokens=8)
        assert answer.choices[0].text == expected


def test_messages_in_parts(client: Client) -> None:
    parts: Any = [{"type": "text", "text": ADDITION[:9]}, {"type": "text", "text": ADDITION[9:]}]
    answer = client.chat.completions.create(model="", messages=[{"role": "user", "content": parts}], max_tokens=24)
    assert answer.choices[0].message.content == client.say(ADDITION)


def test_a_system_message_changes_the_answer(client: Client) -> None:
    said = "You are a pirate. Speak like one."
    first: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": said},
        {"role": "developer", "content": said},
    ]
    answers = [
        client.chat.completions.create(model="", messages=[message, *turns(FRUIT)], max_tokens=24) for message in first
    ]
    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1] != client.say(FRUIT)


def test_the_list_of_models(client: Client, demo_pair: tuple[Path, Path]) -> None:
    (model,) = client.models.list().data
    assert model.id == demo_pair[0].stem
    assert model.model_extra is not None
    assert model.model_extra["meta"]["n_ctx"] == N_CTX
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.models.retrieve("gpt")
    # Any of the names that it goes by.
    for name in (model.id, "", "default"):
        assert client.completions.create(model=name, prompt=PARIS, max_tokens=2).choices[0].text


# Streams


def test_a_stream_is_the_same_text(client: Client) -> None:
    chunks = client.stream_text(most=24)
    assert joined(chunks) == client.write(most=24)
    assert len(chunks) > 3
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_of_a_chat_is_the_same_text(client: Client) -> None:
    chunks = client.stream_chat(ADDITION)
    assert joined_chat(chunks) == client.say(ADDITION)
    assert [chunk.object for chunk in chunks] == ["chat.completion.chunk"] * len(chunks)
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_a_stream_with_usage(client: Client) -> None:
    whole = client.chat_with(ADDITION).usage
    chunks = client.stream_chat(ADDITION, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole is not None
    assert chunks[-1].usage.prompt_tokens == whole.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in client.stream_chat(ADDITION, stream_options={"include_usage": False}))


def test_a_stream_ends_with_timings(client: Client) -> None:
    last = client.stream_text(most=8)[-1]
    assert last.model_extra is not None
    assert last.model_extra["timings"]["predicted_n"] == 8


def test_a_stream_says_what_was_guessed(client: Client) -> None:
    """The pieces' accepted characters are the text of the tokens that the timings count as accepted."""
    chunks = client.stream_text(most=24)
    extras = [chunk.model_extra or {} for chunk in chunks]
    accepted = [extra["duo"]["accepted"] for extra in extras if "duo" in extra]
    assert len(accepted) == len(chunks) - 1
    assert all(0 <= n <= len(chunk.choices[0].text) for n, chunk in zip(accepted, chunks, strict=False))
    assert (sum(accepted) > 0) == (extras[-1]["timings"].get("draft_n_accepted", 0) > 0)


def test_characters_of_several_tokens_come_whole(client: Client) -> None:
    grammar = {"grammar": f'root ::= "{EMOJI}"'}
    chunks = client.stream_text(most=16, extra_body=grammar)
    assert joined(chunks) == EMOJI
    assert all("\ufffd" not in chunk.choices[0].text for chunk in chunks)
    assert client.write(most=16, extra_body=grammar) == EMOJI


def test_a_character_that_is_cut_off_is_marked(client: Client) -> None:
    """JSON cannot hold half a character."""
    grammar = {"grammar": f'root ::= "{EMOJI}"'}
    assert "\ufffd" in client.write(most=1, extra_body=grammar)


# Where a text ends


def test_stop_strings(client: Client) -> None:
    text = client.write(most=16)
    stop = text[9:12]
    expected = text[: text.index(stop)]
    assert expected
    for stops in (stop, [stop], ["never", stop, "ever"]):
        answer = client.complete(most=16, stop=stops)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
        chunks = client.stream_text(most=16, stop=stops)
        assert (joined(chunks), chunks[-1].choices[0].finish_reason) == (expected, "stop")
    assert client.write(most=16, stop="never") == text


def test_as_many_tokens_as_asked_for(client: Client) -> None:
    for n in (0, 1, 5):
        answer = client.complete(most=n, extra_body={"ignore_eos": True})
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (n, "length")
        assert bool(answer.choices[0].text) == bool(n)


def test_the_newer_name_for_the_number_of_tokens(client: Client) -> None:
    answer = client.chat_with(ADDITION, most=9, max_completion_tokens=2)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (2, "length")


def test_without_a_number_a_text_ends_by_itself(client: Client) -> None:
    answer = client.chat.completions.create(model="", messages=turns(ADDITION))
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == client.say(ADDITION)


def test_a_context_that_is_full_ends_the_text(client: Client) -> None:
    answer = client.completions.create(model="", prompt=[100] * 490, max_tokens=-1, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.choices[0].finish_reason == "length"
    # As many as fit, and one more that nobody need read.
    assert answer.usage.total_tokens == N_CTX + 1


def test_a_prompt_that_fills_the_context_is_answered(client: Client) -> None:
    one = client.completions.create(model="", prompt=[100] * N_CTX, max_tokens=4, extra_body={"ignore_eos": True})
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (N_CTX, 1)
    assert one.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match=f"{N_CTX + 1} tokens") as told:
        client.completions.create(model="", prompt=[100] * (N_CTX + 1), max_tokens=4)
    assert told.value.code == "context_length_exceeded"


# Sampling


def test_a_seed_gives_the_same_text(client: Client) -> None:
    texts = [client.say(FRUIT, most=8, temperature=1, seed=seed) for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 2


def test_without_a_seed_texts_differ(client: Client) -> None:
    assert len({client.say(FRUIT, most=8, temperature=1.2) for _ in range(3)}) > 1
    assert len({client.say(FRUIT, most=8, temperature=1.2, seed=-1) for _ in range(3)}) > 1


def test_no_temperature_means_the_most_likely_text(client: Client) -> None:
    expected = client.say(FRUIT, most=8)
    for seed in (1, 2):
        assert client.say(FRUIT, most=8, temperature=0, seed=seed) == expected
        assert client.say(FRUIT, most=8, temperature=1, top_p=0, seed=seed) == expected
        assert client.say(FRUIT, most=8, temperature=1, seed=seed, extra_body={"top_k": 1}) == expected


def test_logit_bias(client: Client, lead: LeadProcess) -> None:
    (first, *_) = lead.post("/tokenize", content=client.write(most=1)).json()["tokens"]
    (wanted,) = lead.post("/tokenize", content=" Rome").json()["tokens"]
    assert client.write(most=2, logit_bias={str(wanted): 100}) == " Rome Rome"
    without = client.complete(most=1, logit_bias={str(first): -100})
    assert without.choices[0].text not in ("", client.write(most=1))


def test_penalties(client: Client) -> None:
    text = client.write("1, 1, 1, 1, 1, 1,", most=8)
    assert text.count(" 1") > 1
    for more in ({"frequency_penalty": 50}, {"presence_penalty": 50}, {"extra_body": {"repeat_penalty": 50}}):
        assert client.write("1, 1, 1, 1, 1, 1,", most=8, **more).count(" 1") < text.count(" 1")


# Grammars

_SCHEMA = {
    "type": "object",
    "properties": {"fruit": {"enum": ["apple", "pear"]}, "ripe": {"type": "boolean"}},
    "required": ["fruit", "ripe"],
    "additionalProperties": False,
}


def test_a_text_obeys_a_schema(client: Client) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": _SCHEMA}}
    for more in ({"response_format": form}, {"extra_body": {"json_schema": _SCHEMA}}):
        answer = client.chat_with(FRUIT, most=48, temperature=1, seed=3, **more)
        assert answer.choices[0].finish_reason == "stop"
        found = json.loads(answer.choices[0].message.content or "")
        assert set(found) == {"fruit", "ripe"}
        assert found["fruit"] in ("apple", "pear")
        assert isinstance(found["ripe"], bool)


def test_a_text_is_an_object(client: Client, lead: LeadProcess) -> None:
    """The bias would have it begin with the bracket that an object ends with."""
    (bracket,) = lead.post("/tokenize", content="}").json()["tokens"]
    bias: Any = {str(bracket): 100}
    assert client.say(FRUIT, most=3, logit_bias=bias) == "}}}"
    form: Any = {"type": "json_object"}
    answer = client.chat_with(FRUIT, most=16, response_format=form, logit_bias=bias)
    assert json.loads(answer.choices[0].message.content or "") == {}
    assert answer.choices[0].finish_reason == "stop"
    assert client.say(FRUIT, most=3, response_format={"type": "text"}, logit_bias=bias) == "}}}"


def test_a_text_obeys_a_grammar(client: Client) -> None:
    more = {"grammar": 'root ::= "pear" | "plum"'}
    assert client.say(FRUIT, extra_body=more) in ("pear", "plum")


def test_a_grammar_holds_for_one_request(client: Client) -> None:
    expected = client.say(FRUIT)
    client.say(FRUIT, extra_body={"grammar": 'root ::= "plum"'})
    assert client.say(FRUIT) == expected


# Errors

_BAD: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": -1},
    "top_p": {"top_p": 1.5},
    "max_tokens": {"max_tokens": -2},
    "presence_penalty": {"presence_penalty": 1e9},
    "seed": {"seed": 2**63},
    "stop": {"stop": ["x"] * 33},
    "logit_bias": {"logit_bias": {"49152": 1}},
    "vocabulary": {"logit_bias": {"one": 1}},
    "n must be 1": {"n": 2},
    "logprobs": {"logprobs": True},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "response_format": {"response_format": {"type": "yaml"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "none such"}}}},
    "send one": {"extra_body": {"grammar": 'root ::= "a"', "json_schema": {}}},
    "grammar": {"extra_body": {"grammar": "root ::= nothing"}},
    "image_url": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    "messages": {"messages": []},
    "tokens, the context 512": {"messages": [{"role": "user", "content": "word " * 600}]},
}


@pytest.mark.parametrize("said", _BAD)
def test_a_bad_request_is_told_what_is_wrong(client: Client, said: str) -> None:
    request: dict[str, Any] = {"model": "", "messages": turns(FRUIT), "max_tokens": 4} | _BAD[said]
    with pytest.raises(openai.BadRequestError, match=said) as told:
        client.chat.completions.create(**request)
    assert told.value.type == "invalid_request_error"


@pytest.mark.parametrize("more", [{"n": 2}, {"logprobs": 3}, {"echo": True}, {"suffix": "x"}])
def test_what_is_not_supported_is_refused(client: Client, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match=next(iter(more))):
        client.complete(**more)


@pytest.mark.parametrize("more", [{"n": 1}, {"logprobs": False}, {"tools": []}, {"user": "me"}, {"stop": None}])
def test_what_changes_nothing_is_let_through(client: Client, more: dict[str, Any]) -> None:
    assert client.say(FRUIT, **more) == client.say(FRUIT)


def test_a_model_that_is_not_here(client: Client) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-none") as told:
        client.chat.completions.create(model="gpt-none", messages=turns(FRUIT))
    assert told.value.code == "model_not_found"


def test_an_endpoint_that_is_not_here(client: Client) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="", input="a")


def test_a_page_of_another_site_may_not_ask(lead: LeadProcess) -> None:
    elsewhere = {"Origin": "https://evil.example"}
    with Client(lead, default_headers=elsewhere) as client, pytest.raises(openai.PermissionDeniedError, match="origin"):
        client.say(FRUIT)


def test_a_body_that_is_too_large(client: Client) -> None:
    with pytest.raises(openai.APIStatusError, match="8388608") as told:
        client.write("x" * 9_000_000)
    assert told.value.status_code == 413


def test_a_stream_of_what_cannot_be_written_is_refused(client: Client) -> None:
    with pytest.raises(openai.BadRequestError, match="grammar"):
        client.stream_text(extra_body={"grammar": "root ::= nothing"})
    assert client.write(most=2)


def test_a_key_that_is_wrong(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT, "--api-key", "sk-right") as keyed:
        with Client(keyed, api_key="sk-right") as client:
            assert client.write(most=2)
        with Client(keyed, api_key="sk-wrong") as client, pytest.raises(openai.AuthenticationError) as told:
            client.write(most=2)
        assert told.value.code == "invalid_api_key"


# Many, and those who leave


def test_each_client_gets_its_own_text(lead: LeadProcess, client: Client) -> None:
    prompts = [PARIS, "tick tock tick", "1, 2, 3,", "Once upon a time"]
    expected = [client.write(prompt, most=6) for prompt in prompts]

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{lead.url}/v1", api_key=KEY, max_retries=0) as many:
            asked = [many.completions.create(model="", prompt=prompt, max_tokens=6) for prompt in prompts * 3]
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask_all()) == expected * 3


def test_leaving_a_stream_ends_the_generation(slow: LeadProcess) -> None:
    before = counts(slow)
    with Client(slow) as client:
        with is_writing(client, slow):
            pass
        assert client.write(most=2)
    name = 'duo:generations_total{stop="interrupted"}'
    assert counts(slow)[name] == before.get(name, 0) + 1
    assert slow.metric("llamacpp:tokens_predicted_total") - before["llamacpp:tokens_predicted_total"] < 400


def test_a_client_that_has_waited_long_enough(slow: LeadProcess) -> None:
    before = counts(slow)
    with Client(slow) as client:
        with pytest.raises(openai.APITimeoutError):
            client.write(most=-1, timeout=1, extra_body={"ignore_eos": True})
        assert client.write(most=2)
    name = 'duo:generations_total{stop="interrupted"}'
    assert counts(slow)[name] == before.get(name, 0) + 1


def test_a_client_that_leaves_the_queue_is_not_answered(slow: LeadProcess) -> None:
    before = counts(slow)
    with Client(slow) as client, is_writing(client, slow):
        with pytest.raises(openai.APITimeoutError):
            client.write(most=2, timeout=0.5)
        wait_until(lambda: slow.metric("llamacpp:requests_deferred") == 0)
    after = counts(slow)
    generations = [sum(value for name, value in count.items() if "generations" in name) for count in (before, after)]
    assert generations[1] == generations[0] + 1


def test_a_queue_that_is_full(slow: LeadProcess) -> None:
    with Client(slow) as client, Client(slow, max_retries=8) as patient, is_writing(client, slow) as stream:
        waiting = slow.stream(PARIS, 2)
        wait_until(lambda: slow.metric("llamacpp:requests_deferred") == 1)
        with pytest.raises(openai.InternalServerError, match="try again") as told:
            client.write(most=2)
        assert told.value.status_code == 503
        assert told.value.response.headers["Retry-After"] == "1"
        # The SDK does try again, by itself.
        stream.close()
        assert patient.write(most=2) == waiting.finish()


# What llama-server's clients ask besides


def test_tokenize_and_detokenize(lead: LeadProcess) -> None:
    for text in (PARIS, " ", "", "<|im_start|>user", f"{EMOJI} a\0b\n"):
        tokens = lead.post("/tokenize", content=text).json()["tokens"]
        assert lead.post("/detokenize", tokens=tokens).json() == {"content": text}
    pieces = lead.post("/tokenize", content=PARIS, with_pieces=True).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == PARIS
    assert [piece["id"] for piece in pieces] == lead.post("/tokenize", content=PARIS).json()["tokens"]


@pytest.mark.parametrize("tokens", [[-1], [49152], [2**70], ["a"], [1.5], None])
def test_no_such_token(lead: LeadProcess, tokens: Any) -> None:
    assert lead.post("/detokenize", tokens=tokens).status_code == 400
    if tokens is not None:
        assert lead.post("/v1/completions", prompt=[1, *tokens], max_tokens=1).status_code == 400


def test_health(lead: LeadProcess) -> None:
    answer = httpx.get(f"{lead.url}/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_metrics_count(lead: LeadProcess, client: Client) -> None:
    before = counts(lead)
    answers = [client.complete("Nobody has asked this yet:", most=7, extra_body={"ignore_eos": True}) for _ in "ab"]
    answer = client.chat_with(ADDITION)
    after = counts(lead)

    def added(name: str) -> float:
        return after[name] - before.get(name, 0)

    usages = [usage for usage in (*(text.usage for text in answers), answer.usage) if usage is not None]
    assert added("llamacpp:tokens_predicted_total") == sum(usage.completion_tokens for usage in usages)
    n_prompts = sum(usage.prompt_tokens for usage in usages)
    assert added("llamacpp:prompt_tokens_total") + added("duo:prompt_tokens_cached_total") == n_prompts
    assert added("duo:prompt_tokens_cached_total") >= usages[0].prompt_tokens - 1
    assert added('duo:generations_total{stop="token limit"}') == 2
    assert added('duo:generations_total{stop="end of text"}') == 1
    extras = [(text.model_extra or {})["timings"] for text in answers]
    assert added("spec_decode_num_draft_tokens_total") >= sum(timings.get("draft_n", 0) for timings in extras)
    assert added("spec_decode_num_accepted_tokens_total") >= sum(
        timings.get("draft_n_accepted", 0) for timings in extras
    )
    for name in ("n_decode_total", "prompt_seconds_total", "tokens_predicted_seconds_total"):
        assert added(f"llamacpp:{name}") > 0
    assert after["llamacpp:requests_processing"] == after["llamacpp:requests_deferred"] == 0
    assert after["llamacpp:prompt_tokens_seconds"] > 0
    assert after["llamacpp:predicted_tokens_seconds"] > 0


# The prompt cache


def test_a_second_turn_reads_only_what_is_new(client: Client, demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    first = client.say(FRUIT)
    second = client.chat_with(FRUIT, first, "Another one, please.")
    usage = second.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    # All of the first turn, but for what the template may write otherwise after it.
    n_first = client.chat_with(FRUIT, most=1).usage
    assert n_first is not None
    assert n_first.prompt_tokens <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens

    with LeadProcess(target, "-md", draft, "-td", "1", *CONTEXT, "--exact") as fresh, Client(fresh) as other:
        unread = other.chat_with(FRUIT, first, "Another one, please.")
        assert unread.usage is not None
        assert unread.usage.prompt_tokens_details is not None
        assert unread.usage.prompt_tokens_details.cached_tokens == 0
        assert unread.choices[0].message.content == second.choices[0].message.content


def test_texts_in_between_change_nothing(client: Client) -> None:
    expected = client.write("1, 2, 3,", most=12)
    for other in ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,", "1", "1, 2, 3", "Once upon a time"):
        client.write(other, most=3)
        with closing(client.completions.create(model="", prompt=other, max_tokens=99, stream=True)) as stream:
            next(iter(stream))
        assert client.write("1, 2, 3,", most=12) == expected
