"""Misspelt fields: which names a client is told about."""

from __future__ import annotations

import json
import logging
import re

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats

from duo.server import fields
from duo.server.api import ChatRequest, CompletionRequest, TokenizeRequest
from duo.server.fields import misspelt

TYPOS = {
    "max_token": "max_tokens",
    "maxTokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "num_predict": "n_predict",
    "temprature": "temperature",
    "Temperature": "temperature",
    "temp": "temperature",
    "top-p": "top_p",
    "topK": "top_k",
    "repetition_penalty": "repeat_penalty",
    "presense_penalty": "presence_penalty",
    "respone_format": "response_format",
    "stop_sequences": "stop",
    "steam": "stream",
    "mesages": "messages",
}
# Of llama-server and vLLM, and what front ends add.
OTHERS = re.findall(
    r"\S+",
    """
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
    """,
)


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "_logged", set())


def told(*names: str, kind: type[msgspec.Struct] = ChatRequest) -> str | None:
    return misspelt(json.dumps(dict.fromkeys(names, 1)).encode(), kind)


@pytest.mark.parametrize("typo", TYPOS)
def test_a_misspelt_field_is_told_with_the_nearest(typo: str) -> None:
    assert told("model", typo) == f'unknown field "{typo}": did you mean "{TYPOS[typo]}"?'


def test_fields_of_other_servers_are_no_mistakes() -> None:
    fields_of_openai = [
        *chats.CompletionCreateParamsBase.__annotations__,
        *completions.CompletionCreateParamsBase.__annotations__,
    ]
    assert len(fields_of_openai) > 40
    for kind in (ChatRequest, CompletionRequest):
        known = [field.encode_name for field in msgspec.structs.fields(kind)]
        others = [name for name in (*OTHERS, *fields_of_openai) if name not in known]
        assert [hint for name in others if (hint := told(name, kind=kind))] == []


def test_only_fields_of_the_request_are_suggested() -> None:
    assert told("contents", kind=TokenizeRequest) == 'unknown field "contents": did you mean "content"?'
    assert told("temp", "max_length", kind=TokenizeRequest) is None


def test_at_most_three_are_told_and_what_cannot_be_in_a_header_is_not() -> None:
    hint = told("temprature", "max_token", "top-p", "top-k")
    assert hint is not None
    assert hint.count("did you mean") == 3
    assert told("temper\nature", "temperäture", "temperature ", "max_tokens" * 5, "") is None


def test_a_name_is_logged_once_and_few_names_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "duo.server")
    for _ in range(3):
        told("temprature")
    assert [record.getMessage() for record in caplog.records] == [
        'a client sent an unknown field "temprature": did you mean "temperature"?'
    ]
    for number in range(100):
        told(f"max_tokens{number}")
    assert len(caplog.records) == 32
