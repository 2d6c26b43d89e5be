"""What a client is told besides the answer: misspelt fields and other models."""

import logging
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats
from starlette.testclient import TestClient

from duo.server.api import ChatBody, CompletionBody
from duo.server.api_error import WARNING_HEADER
from duo.server.parse_request import misspelt
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
        answer = client.post(path, json=ASKED | more)
        assert answer.status_code == 200, answer.text
        return str(answer.headers.get(WARNING_HEADER, ""))

    hint = 'unknown field "temprature": did you mean "temperature"?'
    other = "unknown model 'gpt\\xe9\\n': 'scripted' answers"
    assert told(stream=True, model="gpté\n", temprature=0.5) == f"{hint}; {other}"
    assert 0 < len(told(model="gpt" * 9000)) < 200
    assert told(**{f"max_tokens{n}": 1 for n in range(20)}).count("did you mean") == 3
    assert not any(told(model=name, cache_prompt=True) for name in (None, "", "default", "scripted"))


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
