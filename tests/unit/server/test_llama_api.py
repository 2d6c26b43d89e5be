"""llama-server's own API: POST /completion, properties, slots, and the paths that a lead does not serve."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.cli.arguments import flags
from duo.config import SAMPLERS, GenerationConfig
from duo.server.lead_server import Lead
from tests.scripted import BOS, N_CTX, TEXT, ScriptedSlot, tokens_of
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

COMPLETION = "/completion"


def complete(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post(COMPLETION, json={"prompt": "a"} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def stream(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(COMPLETION, json={"prompt": "a", "stream": True} | fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = answer.text.split("\n\n")
    assert not rest
    return [json.loads(block.removeprefix("data: ")) for block in blocks]  # no [DONE], as in llama-server


# Requests

A, B = tokens_of("a"), tokens_of("b c")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [BOS, *A]),
        (["a"], [BOS, *A]),
        (A, A),
        ([*A, "b c", *A], [*A, *B, *A]),
        (["a", *B, "a"], [BOS, *A, *B, *A]),
    ],
)
def test_a_prompt_is_text_tokens_or_both(
    client: TestClient, slot: ScriptedSlot, prompt: Any, expected: list[int]
) -> None:
    found = complete(client, prompt=prompt)
    assert slot.requests[-1].prompt == expected
    assert found["prompt"] == slot.target.spelling(expected).decode()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": []}, "1 to 128 prompts"),
        ({"echo": True}, "echo"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": [-1]}, "no token -1"),
        ({"prompt": [9] * (N_CTX + 1)}, f"{N_CTX + 1} tokens > {N_CTX} maximum"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["YQ=="]}}, "prompt"),
        ({"n_cmpl": 200}, "n must be 1"),
        ({"samplers": "top_k"}, "samplers"),
        ({"id_slot": 9}, "no slot 9"),
        ({"grammar": "x", "json_schema": {}}, "exclude each other"),
    ],
)
def test_what_is_refused(client: TestClient, fields: dict[str, Any], said: str) -> None:
    assert_error(client.post(COMPLETION, json={"prompt": "a"} | fields), 400, said)


def test_options_and_their_settings(client: TestClient, slot: ScriptedSlot) -> None:
    # What front ends of llama-server send: all samplers, and an empty grammar.
    fields = {
        "n_predict": 5, "temperature": 0.5, "seed": 3, "top_k": 9, "stop": ["x"], "logit_bias": [[7, False]],
        "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"], "grammar": "", "n_probs": 2,
    }  # fmt: skip
    settings = complete(client, **fields)["generation_settings"]
    config = slot.requests[-1].config
    assert config.sampling.samplers == ("top_k", "typ_p", "top_p", "min_p", "temperature")
    assert (config.stop.n_predict, config.stop.stop_strings, config.n_logprobs, config.grammar) == (5, ("x",), 2, None)
    expected = {"n_predict": 5, "max_tokens": 5, "temperature": 0.5, "seed": 3, "top_k": 9, "stop": ["x"]}
    expected |= {"logit_bias": [{"token": 7, "bias": None}], "n_probs": 2, "grammar": ""}
    assert {name: settings[name] for name in expected} == expected
    assert complete(client, json_schema={"type": "integer"})["generation_settings"]["grammar"]
    assert slot.requests[-1].config.grammar is not None
    assert complete(client, samplers=list(SAMPLERS), logprobs=1)["generation_settings"]["n_probs"] == 1


# Answers


def test_a_whole_answer(client: TestClient, slot: ScriptedSlot) -> None:
    slot.text = "One\ntwo"
    found = complete(client, prompt="a b", cache_prompt=False)
    n = len("One\ntwo") + 1
    timings, settings = found.pop("timings"), found.pop("generation_settings")
    assert found == {
        "index": 0, "content": "One\ntwo", "tokens": [], "id_slot": -1, "stop": True, "model": "scripted",
        "tokens_predicted": n, "tokens_evaluated": 4, "prompt": "a b", "has_new_line": True, "truncated": False,
        "stop_type": "eos", "stopping_word": "", "tokens_cached": 4 + n - 1,
    }  # fmt: skip
    assert (timings["prompt_n"], timings["predicted_n"]) == (4, n)
    assert timings.keys() >= {"cache_n", "prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"}
    assert settings["temperature"] == GenerationConfig().sampling.temp
    assert complete(client, return_tokens=True)["tokens"][:-1] == tokens_of("One\ntwo")


@pytest.mark.parametrize(
    ("fields", "stop", "word", "truncated"),
    [
        ({}, "eos", "", False),
        ({"n_predict": 2}, "limit", "", False),
        ({"n_predict": 0}, "limit", "", False),
        ({"stop": [" is", "xyz"]}, "word", " is", False),
        ({"ignore_eos": True}, "limit", "", True),
    ],
)
def test_how_it_ended(client: TestClient, fields: dict[str, Any], stop: str, word: str, truncated: bool) -> None:
    for found in (complete(client, **fields), stream(client, **fields)[-1]):
        assert (found["stop_type"], found["stopping_word"], found["truncated"]) == (stop, word, truncated)
        assert found["stop"] is True


def test_a_prompt_without_an_answer_is_in_the_cache(client: TestClient) -> None:
    assert [complete(client, prompt="a b", n_predict=n)["tokens_cached"] for n in (0, 1, 2)] == [4, 4, 5]


def test_a_stream_ends_with_all_but_the_text(client: TestClient) -> None:
    whole, (*events, last) = complete(client), stream(client)
    assert len(events) > 5
    assert "".join(event["content"] for event in events) == whole["content"] == TEXT
    assert [token for event in events for token in event["tokens"]][:-1] == tokens_of(TEXT)
    assert not any(event["stop"] or "timings" in event for event in events)
    counts = [event["tokens_predicted"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == last["tokens_predicted"] == len(TEXT) + 1
    assert last.keys() == whole.keys()
    assert (last["content"], last["tokens"]) == ("", [])
    each = [event["timings"]["predicted_n"] for event in stream(client, timings_per_token=True)]
    assert len(each) == len(counts) + 1
    assert each[-1] == counts[-1]


def test_probabilities_are_those_of_each_token(client: TestClient) -> None:
    found = complete(client, n_predict=2, n_probs=2)["completion_probabilities"]
    first = tokens_of(TEXT)[0]
    assert [one["token"] for one in found] == ["P", "a"]
    assert {name: found[0][name] for name in ("id", "bytes", "logprob")} == {
        "id": first, "bytes": [ord("P")], "logprob": -float(first),
    }  # fmt: skip
    assert [one["id"] for one in found[0]["top_logprobs"]] == [0, 1]
    streamed = stream(client, n_predict=2, n_probs=2)
    assert [one for event in streamed for one in event.get("completion_probabilities", ())] == found
    assert "completion_probabilities" not in complete(client)
    # One for each token, also an end token and those of a stop string.
    for fields in ({}, {"stop": ["capital"]}):
        whole = complete(client, n_probs=1, return_tokens=True, **fields)
        assert [one["id"] for one in whole["completion_probabilities"]] == whole["tokens"]


def test_several_prompts_are_an_array(client: TestClient) -> None:
    fields = {"prompt": ["a", [*A, "b c"]], "n_cmpl": 2, "n_predict": 3}
    found: Any = client.post(COMPLETION, json=fields).json()
    assert [(one["index"], one["tokens_evaluated"]) for one in found] == [(0, 2), (1, 2), (2, 4), (3, 4)]
    assert [one["content"] for one in found] == ["Par"] * 4
    events = stream(client, **fields)
    assert [event["index"] for event in events if event["stop"]] == [0, 1, 2, 3]
    assert [event["content"] for event in events if not event["stop"]] == ["Par"] * 4


def test_an_error_in_a_stream_is_its_last_event(client: TestClient, slot: ScriptedSlot) -> None:
    slot.error, slot.error_at = ValueError("broken"), 1
    *events, last = stream(client)
    assert [event["content"] for event in events] == ["Par"]
    assert last["error"]["code"] == 500


# Properties and slots


def test_slots_and_properties_are_switches(make_lead: Callable[..., Lead]) -> None:
    for slots, props in ((True, False), (False, True)):
        client = client_of(make_lead(slots=slots, props=props))
        found = client.get("/props").json()
        assert (found["endpoint_slots"], found["endpoint_props"]) == (slots, props)
        assert {"n_predict", "n_probs", "grammar", "samplers"} <= found["default_generation_settings"]["params"].keys()
        listed, changed = client.get("/slots"), client.post("/props", json={})
        if slots:
            assert [one["id"] for one in listed.json()] == [0, 1, 2, 3]
            assert_error(changed, 501, "start the lead with --props")
        else:
            assert_error(listed, 501, "start the lead without --no-slots")
            assert changed.json() == {"success": True}
            assert_error(client.post("/props", json={"temperature": 1}), 400, "temperature")


# Paths that a lead does not serve, in the words of the command line


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        *((path, "--embedding") for path in ("/embedding", "/embeddings", "/v1/embeddings")),
        *((path, "--rerank") for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")),
        ("/infill", "--spm-infill"),
        ("/lora-adapters", "--lora"),
        ("/v1/audio/transcriptions", "--audio"),
        ("/audio/transcriptions", "--audio"),
        ("/models/load", "--models-dir"),
        ("/models/unload", "--models-dir"),
        ("/tools", "--tools"),
    ],
)
def test_other_paths_say_what_to_use_instead(client: TestClient, path: str, flag: str) -> None:
    said = flags()[flag].instead.removesuffix(" and give that to -m")
    for answer in (client.post(path, json={"input": "a"}), client.get(path)):
        assert_error(answer, 501, re.escape(said))
        assert answer.json()["error"]["type"] == "not_supported_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions/control", "/v1/streams/lookup", "/v1/stream", "/cors-proxy"])
def test_paths_without_a_flag(client: TestClient, path: str) -> None:
    assert_error(client.post(path, json={}), 501, path)


@pytest.mark.parametrize("path", ["/api/tags", "/api/chat", "/api/show"])
def test_paths_of_ollama_are_unknown(client: TestClient, path: str) -> None:
    assert_error(client.post(path, json={}), 404, "/v1")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_input_tokens_are_counted(client: TestClient, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "abc"}], "input": "abc"}
    for prefix in ("", "/v1"):
        found = client.post(f"{prefix}{path.removeprefix('/v1')}/input_tokens", json=asked).json()
        assert found == {"object": "response.input_tokens", "input_tokens": len("<user>abc<assistant>") + 1}
