"""What a client is told besides the answer: misspelt fields and other models."""

import logging
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats
from starlette.testclient import TestClient

from duo.server.api import ChatBody, CompletionBody, TextBody
from duo.server.messages_api import MessagesBody
from duo.server.requests import WARNING_HEADER, misspelt
from duo.server.responses_api import ResponsesBody
from tests.serving import assert_error
from tests.unit.server.conftest import ASKED

TYPOS = {
    "max_token": "max_tokens", "maxTokens": "max_tokens", "max_length": "max_tokens", "num_predict": "n_predict",
    "temprature": "temperature", "temp": "temperature", "top-p": "top_p", "topK": "top_k",
    "repetition_penalty": "repeat_penalty", "stop_sequences": "stop", "mesages": "messages",
}  # fmt: skip
# Of llama-server and vLLM, and what front ends add.
OTHERS = """
    n_indent n_keep n_discard n_cmpl n_cache_reuse t_max_predict_ms t_max_prompt_ms top_n_sigma xtc_probability
    n_probs xtc_threshold dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers
    dynatemp_range dynatemp_exponent mirostat mirostat_tau mirostat_eta min_keep post_sampling_probs samplers
    id_slot cache_prompt return_tokens return_progress timings_per_token response_fields lora speculative.n_max
    speculative.p_min reasoning_format reasoning_in_content thinking_forced_open parse_tool_calls chat_format
    grammar_lazy grammar_triggers preserved_tokens sse_ping_interval input_prefix input_suffix image_data
    multimodal_data best_of use_beam_search length_penalty stop_token_ids include_stop_str_in_output min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids
    bad_words documents add_generation_prompt continue_final_message add_special_tokens chat_template
    chat_template_kwargs priority mm_processor_kwargs structured_outputs request_id return_token_ids cache_salt
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend include_reasoning
    logits_processors options keep_alive think format raw template context system images transforms models route
    provider plugins usage reasoning session_id trace top_a tfs_z typical_p chat_id background_tasks features
    tool_ids files params variables model_item temperature_last rep_pen guidance_scale negative_prompt do_sample
    early_stopping no_repeat_ngram_size
"""


@pytest.mark.parametrize("typo", TYPOS)
def test_a_misspelt_field_is_told_with_the_nearest(typo: str) -> None:
    said = misspelt(["model", typo], ChatBody.__struct_encode_fields__)
    assert said == [f'unknown field "{typo}": did you mean "{TYPOS[typo]}"?']


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
def test_fields_of_other_servers_are_no_mistakes(kind: type[msgspec.Struct]) -> None:
    of_openai = (
        chats.CompletionCreateParamsBase.__annotations__ | completions.CompletionCreateParamsBase.__annotations__
    )
    assert len(of_openai) > 30
    known = kind.__struct_encode_fields__
    assert not [hint for name in (*OTHERS.split(), *of_openai) for hint in misspelt([name], known)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/apply-template"])
def test_they_and_other_models_are_told_in_a_header(client: TestClient, path: str) -> None:
    def told(**more: Any) -> str:
        part = "prompt" if path == "/v1/completions" else "messages"
        answer = client.post(path, json={part: ASKED[part]} | more)
        assert answer.status_code == 200, answer.text
        return str(answer.headers.get(WARNING_HEADER, ""))

    hint = 'unknown field "temprature": did you mean "temperature"?'
    other = "unknown model 'gpt\\xe9\\n': 'scripted' answers"
    assert told(stream=True, model="gpté\n", temprature=0.5) == f"{hint}; {other}"
    assert 0 < len(told(model="gpt" * 9000)) < 200
    assert told(**{f"max_tokens{n}": 1 for n in range(20)}).count("did you mean") == 3
    assert not any(told(model=name, cache_prompt=True) for name in (None, "", "default", "scripted"))


# Of llama-server, vLLM and both, of OpenAI's APIs and Anthropic's, and of other servers.
VALUES: dict[str, Any] = {
    "dry_multiplier": 0.8, "mirostat": 2, "mirostat_tau": 3, "xtc_probability": 0.5, "xtc_threshold": 0.2,
    "dynatemp_range": 1, "top_n_sigma": 1.5, "adaptive_target": 0.5, "samplers": ["top_k"], "lora": [{"id": 0}],
    "n_keep": -1, "n_discard": 4, "t_max_predict_ms": 100, "response_fields": ["content"], "return_tokens": True,
    "timings_per_token": True, "post_sampling_probs": True, "speculative.p_min": 0.5, "min_keep": 2,
    "best_of": 2, "use_beam_search": True, "length_penalty": 2, "stop_token_ids": [5], "min_tokens": 5,
    "include_stop_str_in_output": True, "skip_special_tokens": False, "prompt_logprobs": 1, "bad_words": ["a"],
    "allowed_token_ids": [1], "truncate_prompt_tokens": 9, "documents": [{"a": "b"}], "chat_template": "a",
    "priority": 1, "cache_salt": "a", "logits_processors": ["a"],
    "verbosity": "low", "service_tier": "flex", "store": True, "user": "me", "prediction": {"type": "content"},
    "modalities": ["text", "audio"], "web_search_options": {"a": 1}, "safety_identifier": "a", "include": ["a"],
    "truncation": "auto", "max_tool_calls": 1, "container": "a", "mcp_servers": [{"a": 1}], "think": True,
    "keep_alive": "5m", "transforms": ["a"], "no_repeat_ngram_size": 3, "anything": 1,
}  # fmt: skip
# Nobody asks for anything with these.
DEFAULTS: dict[str, Any] = {
    "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "mirostat": 0,
    "mirostat_tau": 5, "mirostat_eta": 0.1, "xtc_probability": 0.0, "xtc_threshold": 0.1, "dynatemp_range": 0,
    "dynatemp_exponent": 1, "top_n_sigma": -1.0, "adaptive_target": -1, "n_keep": 0, "t_max_predict_ms": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"], "post_sampling_probs": False, "lora": [], "min_keep": 0,
    "best_of": 1, "length_penalty": 1.0, "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "stop_token_ids": None, "min_tokens": 0, "use_beam_search": False, "include_reasoning": True, "n_cmpl": 1,
    "service_tier": "auto", "store": False, "modalities": ["text"], "verbosity": "medium", "user": "",
    "truncation": "disabled", "function_call": "auto",
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/completions", CompletionBody), ("/v1/chat/completions", ChatBody), ("/v1/responses", ResponsesBody),
        ("/v1/messages", MessagesBody),
    ],
)  # fmt: skip
def test_every_field_without_effect_is_named_unless_its_value_is_the_default(
    client: TestClient, path: str, kind: type[msgspec.Struct]
) -> None:
    def told(**more: Any) -> str:
        asked = {"messages": ASKED["messages"], "prompt": "a", "input": "a"}
        part = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
        answer = client.post(path, json={part: asked[part]} | more)
        assert answer.status_code == 200, answer.text
        return str(answer.headers.get(WARNING_HEADER, ""))

    served = {*kind.__struct_encode_fields__, *TextBody.__struct_encode_fields__}
    values = {name: value for name, value in VALUES.items() if name not in served}
    assert len(values) > len(VALUES) / 2
    for name, value in values.items():
        assert told(**{name: value}) == f"without effect here: {name}"
    for name, value in DEFAULTS.items():
        assert told(**{name: value}) == "", name
    asked = dict(list(values.items())[:40])
    assert told(**asked, stream=True) == f"without effect here: {', '.join(asked)}"
    assert told(model="gpt", mirostat=1, temprature=0.5).split("; ")[1:] == [
        "unknown model 'gpt': 'scripted' answers", "without effect here: mirostat"
    ]  # fmt: skip
    odd = {"a b": 1, "x": 1, "y" * 50: 1, "ü\n": 1, "": 1}
    assert told(**odd) == rf"without effect here: 'a b', x, '{'y' * 40}', '\xfc\n', ''"
    many = told(**{f"a{n}\r\n": 1 for n in range(10)}, **{f"b{n:038}": 1 for n in range(1000)})
    assert len(many) < 4000
    assert many.endswith(" and 946 more")


@pytest.mark.parametrize(
    ("path", "asked", "named"),
    [
        ("/v1/responses", {"input": "a", "text": {"verbosity": "low", "format": {"type": "text"}}}, "text.verbosity"),
        ("/v1/responses", {"input": "a", "reasoning": {"effort": "low", "summary": "auto"}}, "reasoning.summary"),
        ("/v1/messages", ASKED | {"thinking": {"type": "disabled", "display": "omitted"}, "prompt": ""},
         "thinking.display"),
        ("/v1/chat/completions", {"messages": ASKED["messages"], "stream": True,
         "stream_options": {"include_usage": True, "include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ("/v1/chat/completions", {"messages": ASKED["messages"], "stream_options": {"include_obfuscation": False}}, ""),
    ],
)  # fmt: skip
def test_fields_of_fields(client: TestClient, path: str, asked: dict[str, Any], named: str) -> None:
    answer = client.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get(WARNING_HEADER, "") == (f"without effect here: {named}" if named else "")


def test_an_error_that_a_misspelt_field_may_explain_quotes_it(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"mesages": []})
    assert_error(answer, 400, r'^messages must not be empty \(unknown field "mesages": did you mean "messages"\?\)$')
    wrong = {"prompt": "a", "temprature": 1, "json_schema": {"type": "x" * 9000}}
    assert_error(client.post("/v1/completions", json=wrong), 400, r"temperature\"\?\)$")


def test_few_names_are_logged_once(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "duo.server")
    for number in (0, 0, *range(40)):
        client.post("/tokenize", json={"content": "a", f"parse_special{number}": 1})
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == 'a client sent an unknown field "parse_special0": did you mean "parse_special"?'
    assert len(said) == 32
