"""Requests: which are refused, and what the others ask of the engine."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.chat.conversation import MAX_OPTIONS
from duo.config import GenerationConfig, SamplingConfig, StopConfig
from duo.llama.grammar import schema_grammar
from duo.server.lead_server import Lead
from tests.scripted import BOS, N_CTX, N_VOCAB, ScriptedModel, ScriptedSlot, tokens_of
from tests.serving import assert_error
from tests.unit.server.conftest import CHAT, COMPLETIONS, answer_of, client_of

TEXTS = (COMPLETIONS, CHAT)
DEEP = b"[" * 100_000


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def asked(client: TestClient, slot: ScriptedSlot, **fields: Any) -> GenerationConfig:
    """How the text is to be written that these fields ask for."""
    answer_of(client, COMPLETIONS, **fields)
    return slot.requests[-1].config


# tests/fuzz/test_http_api.py damages bodies; these are those that libraries differ in most.
MALFORMED = (
    b"", b"hello", b"null", b'{"prompt": "a"} {}', b"prompt=a&max_tokens=1", '{"prompt": "a"}'.encode("utf-16"),
    b'{"prompt": "\xff\xfe", "content": "\xff"}', b'{"prompt": "\\ud800", "content": "\\ud800"}',
    b'{"temperature": NaN}', b'{"temperature": -Infinity}', b'{"temperature": 1e999}',
    DEEP, b'{"unknown": ' + DEEP + b"]" * 100_000 + b"}",
    b'{"prompt": "a", "json_schema": ' + b'{"items":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
)  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_bodies_are_refused(client: TestClient, body: bytes) -> None:
    for path in (*TEXTS, "/tokenize", "/detokenize"):
        assert_error(client.post(path, content=body), 400)


# Values out of range

# Bounds of numbers are those of the options: see tests/unit/config.
WRONG: dict[str, list[Any]] = {
    "prompt": [None, 1, {}, [None], [[[1]]], [1.5], [True], [-1], [N_VOCAB], [2**64], [],
               [[]], [[9], []], ["a", [N_VOCAB]], [9, [9]], ["a"] * 129],
    "messages": [None, [], {}, "hello", [1], [{}], [{"content": "a"}], [{"role": 1, "content": "a"}], [user(1)],
                 [user([{"text": "a"}])], [user([{"type": "image_url"}])], [user("a")] * 4097,
                 [{"role": "assistant", "tool_calls": [{}]}]],
    "max_tokens": [-2, 2**31, 2**63, 10**400, 1.5, "5", True, [], {}],
    "max_completion_tokens": [-2, "5"],
    "temperature": [-0.1, 1e7, "hot", True, []],
    "top_k": [-2, 2**31, 0.5],
    "repeat_last_n": [-2, 2**31],
    "frequency_penalty": [-1e7, 1e7, "1"],
    "seed": [1.5, "1"],
    "stop": [[1], {}, ["x"] * 33, "x" * 1025],
    "logit_bias": [{"-1": 1}, {str(N_VOCAB): 1}, {"1": 1e7}, {"1": "1"}, {"1": True}, {"0" * 65: 1}, {"a" * 65: 1},
                   [1], [[1]], [[1, 2, 3]], [[N_VOCAB, 1]], [[-1, 1]], [[1.5, 1]], [[1, True]], [["a" * 65, 1]],
                   [[1, 1]] * 1025, [["a" * 64, 1]] * 17, "1"],
    "stream": ["yes", 1],
    "stream_options": [1, {"include_usage": "yes"}],
    "n": [0, 129, -1, 10**30, "1"],
    "n_cmpl": [0, 129],
    "response_format": ["json", {"type": 5}, {"type": "xml"}],
    "grammar": [5, "x" * (2**18 + 1), " ", "a\0"],
    "json_schema": ["{", [], {"type": "nonsense"}, {"$ref": "#/none"}, {"$ref": "https://192.0.2.1/schema"}],
    "echo": [1, "yes"],
    "tools": [{}, [1], [{"type": "function", "function": {"name": "now"}}]],
    "logprobs": [-1, 21, "yes"],
    "n_probs": [-1, 21, True],
}  # fmt: skip
SAID = {
    "prompt": r"prompt|token",
    "messages": r"messages|supported|text",
    "max_completion_tokens": "max_(completion_)?tokens",
    "logit_bias": "logit_bias|no token",
    "n": r"n must be 1 to 128|\$\.n",
    "n_cmpl": "n must be 1 to 128",
    "json_schema": r"schema|ref",
}


@pytest.mark.parametrize("field", WRONG)
def test_values_out_of_range_are_refused_by_name(client: TestClient, field: str) -> None:
    path = TEXTS[field == "messages"]
    for value in WRONG[field]:
        body = json.dumps({"prompt": "a", "max_tokens": 1, field: value}).encode()
        assert_error(client.post(path, content=body), 400, SAID.get(field, field))


def test_a_prompt_longer_than_the_context_is_refused(client: TestClient) -> None:
    said = rf"^prompt is too long: {N_CTX + 1} tokens > {N_CTX} maximum\. .* maximum context length is {N_CTX} "
    answer = client.post(COMPLETIONS, json={"prompt": [9] * (N_CTX + 1)})
    assert_error(answer, 400, said)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    # The text needs room, too: for one token at least, if it is to have any.
    assert_error(
        client.post(COMPLETIONS, json={"prompt": [9] * N_CTX}), 400, rf"{N_CTX} tokens > {N_CTX - 1} maximum\."
    )
    assert client.post(COMPLETIONS, json={"prompt": [9] * N_CTX, "max_tokens": 0}).status_code == 200


@pytest.mark.parametrize("n_prompt", [N_CTX - 1, N_CTX - 2, 5])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/responses", "/v1/messages"])
def test_a_text_ends_where_the_context_is_full(
    client: TestClient, slot: ScriptedSlot, path: str, n_prompt: int
) -> None:
    slot.text = "a" * N_CTX
    words = "a" * (n_prompt - len(slot.target.tokenize("<user><assistant>")))
    said = [{"role": "user", "content": words}]
    asked = {COMPLETIONS: {"prompt": [9] * n_prompt}, "/v1/responses": {"input": said}}.get(path, {"messages": said})
    usage = client.post(path, json=asked).json()["usage"]
    n_text = usage.get("output_tokens", usage.get("completion_tokens"))
    assert n_text == N_CTX - len(slot.requests[-1].prompt) > 0
    assert usage.get("total_tokens", N_CTX) == N_CTX


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("prompt", [[9, *[""] * N_CTX], [["a"] * (N_CTX + 1)]])
def test_more_texts_than_the_context_has_tokens_are_not_tokenised(client: TestClient, prompt: Any) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": prompt})
    assert_error(answer, 400, rf"^prompt is too long: {N_CTX + 1} tokens > {N_CTX} maximum")
    assert answer.json()["error"]["code"] == "context_length_exceeded"


# Prompts


@pytest.mark.parametrize("prompt", ["a b", ["a b"], [BOS, *tokens_of("a b")]])
def test_a_prompt_is_a_text_a_list_of_one_or_tokens(client: TestClient, slot: ScriptedSlot, prompt: Any) -> None:
    asked(client, slot, prompt=prompt)
    assert slot.requests[-1].prompt == [BOS, *tokens_of("a b")]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "ab"}, tokens_of("ab")),
        ({"content": "ab", "add_special": True, "add_special_tokens": False}, [BOS, *tokens_of("ab")]),
        ({"prompt": "ab"}, [BOS, *tokens_of("ab")]),
        ({"prompt": "ab", "add_special_tokens": False, "add_special": True}, tokens_of("ab")),
        ({"prompt": ""}, [BOS]),
        ({"messages": [user("a")]}, [BOS, *tokens_of("<user>a<assistant>")]),
    ],
)
def test_tokenize_takes_the_fields_of_llama_server_and_of_vllm(
    client: TestClient, fields: dict[str, Any], tokens: list[int]
) -> None:
    found = client.post("/tokenize", json=fields).json()
    more = {} if "content" in fields else {"count": len(tokens), "max_model_len": N_CTX, "token_strs": None}
    assert found == {"tokens": tokens, **more}
    back = client.post("/detokenize", json={"model": "default", "tokens": tokens}).json()
    assert back["content"] == back["prompt"] == ScriptedModel().spelling(tokens).decode()


def test_what_is_to_be_tokenised_must_be_clear(client: TestClient) -> None:
    asked: list[Any] = [
        {},
        {"content": None},
        {"content": "a", "prompt": "a"},
        {"prompt": "a", "messages": [user("a")]},
    ]
    for fields in asked:
        assert_error(client.post("/tokenize", json=fields), 400, r"^send either content .*, prompt or messages")
    for fields in ({"prompt": ["a"]}, {"messages": []}, {"prompt": "a", "add_special_tokens": 1}):
        assert_error(client.post("/tokenize", json=fields), 400)


# What is asked of the engine

SCHEMA = {"type": "object", "properties": {"ripe": {"type": "boolean"}}}
GBNF = schema_grammar(json.dumps(SCHEMA, separators=(",", ":")), "the schema")


def test_without_options_the_defaults_hold(client: TestClient, slot: ScriptedSlot) -> None:
    config, other = asked(client, slot), asked(client, slot, seed=-1)
    assert replace(config, sampling=replace(config.sampling, seed=0)) == GenerationConfig()
    assert len({config.sampling.seed, other.sampling.seed, asked(client, slot).sampling.seed}) == 3


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"temperature": 0.7, "top_p": 0.5, "top_k": 9}, SamplingConfig(temp=0.7, top_p=0.5, top_k=9)),
        ({"temperature": 1e-9, "top_k": -1, "min_p": 0.2}, SamplingConfig(0.0, 0, min_p=0.2)),
        ({"repeat_penalty": 1.5, "repeat_last_n": -1}, SamplingConfig(repeat_penalty=1.5, repeat_last_n=N_CTX)),
        ({"presence_penalty": 1, "typical_p": 0.3}, SamplingConfig(presence_penalty=1.0, typical=0.3)),
        ({"frequency_penalty": -1, "repeat_last_n": 5}, SamplingConfig(frequency_penalty=-1.0, repeat_last_n=5)),
        ({"logit_bias": {"7": 100, "008": -1.5}}, SamplingConfig(logit_bias=((7, 100.0), (8, -1.5)))),
        (
            {"logit_bias": [[7, False], ["ab", -2], ["8", 1e6]]},
            SamplingConfig(logit_bias=((7, -math.inf), *((token, -2.0) for token in tokens_of("ab")), (8, 1e6))),
        ),
        ({"max_tokens": 5}, StopConfig(5)),
        ({"n_predict": 5}, StopConfig(5)),
        ({"max_completion_tokens": 2, "max_tokens": 5, "n_predict": 6}, StopConfig(2)),
        ({"max_tokens": -1, "stop": "x"}, StopConfig(-1, ("x",))),
        ({"stop": ["x", "y"], "ignore_eos": True, "max_tokens": 9}, StopConfig(9, ("x", "y"), True)),
    ],
)
def test_options(
    client: TestClient, slot: ScriptedSlot, fields: dict[str, Any], config: SamplingConfig | StopConfig
) -> None:
    found = asked(client, slot, seed=0, **fields)
    assert config == (found.sampling if isinstance(config, SamplingConfig) else found.stop)


def test_the_options_of_the_server_are_the_defaults(make_lead: Callable[..., Lead], slot: ScriptedSlot) -> None:
    defaults = GenerationConfig(
        SamplingConfig(temp=0.5, top_k=7, seed=3), StopConfig(4, ("stop",), True), "root ::= []"
    )
    client = client_of(make_lead(defaults=defaults, random_seed=False))
    assert asked(client, slot) == defaults
    more = asked(client, slot, temperature=0, seed=8, stop="x", max_tokens=6, ignore_eos=False, grammar='root ::= "a"')
    assert more.sampling == SamplingConfig(temp=0.0, top_k=7, seed=8)
    assert more.stop == StopConfig(6, ("stop", "x"), ignore_eos=False)
    assert more.grammar == 'root ::= "a"'


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"grammar": 'root ::= "a"'}, 'root ::= "a"'),
        ({"json_schema": SCHEMA}, GBNF),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA}}}, GBNF),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, GBNF),
        ({"response_format": {"type": "json_object"}}, schema_grammar("{}", "the schema")),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_grammars(client: TestClient, slot: ScriptedSlot, fields: dict[str, Any], grammar: str | None) -> None:
    assert asked(client, slot, **fields).grammar == grammar


# Limits on texts, which are not tokenised then

MIB = 2**20


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tokenised."""

    def fail(*_: Any, **__: Any) -> list[int]:
        raise AssertionError

    monkeypatch.setattr(ScriptedModel, "tokenize", fail)


@pytest.mark.usefixtures("never")
def test_a_prompt_that_cannot_fit_is_not_tokenised(client: TestClient) -> None:
    text = "a" * (N_CTX + 1)  # a token of this vocabulary is one byte
    for path, fields in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": [user(text)]})):
        answer = client.post(path, json=fields)
        assert_error(answer, 400, rf"^prompt is too long: about \d+ tokens > {N_CTX} maximum\.")
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.usefixtures("never")
def test_a_text_that_takes_too_long_is_not_tokenised(
    client: TestClient, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot.n_ctx = MIB // 8
    slot.target.longest_token = 256
    for path, fields in (
        ("/tokenize", {"content": "é" * (MIB // 2 + 1)}),
        (COMPLETIONS, {"prompt": "a" * (MIB + 2)}),
        (CHAT, {"messages": [user("a" * (MIB // 4 + 1))] * 4}),
    ):
        said = (
            rf"^the text has \d+ bytes: at most {MIB} can be tokenised"
            if "content" in fields
            else "^prompt is too long"
        )
        assert_error(client.post(path, json=fields), 400, said)
    monkeypatch.setattr(ScriptedModel, "n_unknown", lambda _, text: text.count("\t"))
    for path, fields in (("/tokenize", {"content": "\t" * (MIB // 2)}), (COMPLETIONS, {"prompt": "\t" * MIB})):
        assert_error(client.post(path, json=fields), 400, r"^\d+ characters of the text are not in the vocabulary")


@pytest.mark.parametrize("field", ["tools", "logit_bias", "json_schema", "unknown"])
def test_only_the_text_of_a_request_may_be_large(client: TestClient, field: str) -> None:
    nested = f"[{'[],' * (MAX_OPTIONS // 3)}[]]"
    said = f"at most {MAX_OPTIONS} bytes besides its text"
    for body in (f'{{"prompt": "a", "{field}": {nested}}}', f'{{"{field}": {nested}, "prompt": "a", "{field}": []}}'):
        assert_error(client.post(COMPLETIONS, content=body), 413, said)
    twice = f'{{"prompt": {nested}, "prompt": "a"}}'
    assert_error(client.post(COMPLETIONS, content=twice), 413, said)


@pytest.mark.parametrize("options", [{}, {"alias": "m\udcff"}])
def test_a_name_that_is_not_unicode(
    options: dict[str, Any], make_lead: Callable[..., Lead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedModel, "path", Path("m\udcff.gguf"))  # as Python reads a file's name that is not UTF-8
    client = client_of(make_lead(**options))
    assert client.get("/v1/models").json()["data"][0]["id"] == "m?"
    assert client.get("/props").json()["model_path"] == "m?.gguf"
    for path in (COMPLETIONS, CHAT):
        assert (
            client.post(path, json={"prompt": "a", "messages": [{"role": "user", "content": "a"}]}).json()["model"]
            == "m?"
        )
