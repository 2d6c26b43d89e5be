"""Several choices of one request, and prompts that are part of the text: what evaluations ask for."""

import json
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from duo.server import generation_request
from duo.server.lead_server import Lead
from tests.raw_http import connect, request
from tests.scripted import BOS, EOS, N_CTX, TEXT, ScriptedModel, ScriptedSlot, tokens_of
from tests.serving import PATIENCE_S, assert_error, wait_until
from tests.unit.server.conftest import ASKED, CHAT, COMPLETIONS, answer_of, chunks_of

IDS = tokens_of("bc")


def texts_of(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """The texts of a stream by their index."""
    found: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        found[choice["index"]] = found.get(choice["index"], "") + text
    return found


# Several prompts and choices


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (["a", "bc"], [[BOS, *tokens_of("a")], [BOS, *IDS]]),
        ([IDS, [BOS]], [IDS, [BOS]]),
        (["a", IDS], [[BOS, *tokens_of("a")], IDS]),
        ([[*IDS, "a"], ["a", BOS, "b"]], [[*IDS, *tokens_of("a")], [BOS, *tokens_of("a"), BOS, *tokens_of("b")]]),
        ([*IDS, "a"], [[*IDS, *tokens_of("a")]]),
        (["a"], [[BOS, *tokens_of("a")]]),
        ([IDS], [IDS]),
        (["", "a"], [[BOS], [BOS, *tokens_of("a")]]),
    ],
)
def test_a_list_is_a_prompt_or_several(client: TestClient, slot: ScriptedSlot, prompt: Any, found: Any) -> None:
    choices = answer_of(client, COMPLETIONS, prompt=prompt, max_tokens=2)["choices"]
    assert [request.prompt for request in slot.requests] == found
    assert [choice["index"] for choice in choices] == list(range(len(found)))


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_each_choice_of_a_prompt_has_the_next_seed_and_each_prompt_the_same(
    client: TestClient, slot: ScriptedSlot, name: str
) -> None:
    asked: dict[str, Any] = {"prompt": ["a", "bc"], "seed": 2**64 - 2, "max_tokens": 5, name: 3}
    whole = answer_of(client, COMPLETIONS, **asked)
    assert [request.config.sampling.seed for request in slot.requests] == [2**64 - 2, 2**64 - 1, 0] * 2
    assert [len(request.prompt) for request in slot.requests] == [2, 2, 2, 3, 3, 3]
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(i, TEXT[:5]) for i in range(6)]
    assert {*whole} == {"id", "created", "model", "object", "choices", "usage"}
    assert whole["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 30,
        "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    answer_of(client, COMPLETIONS, n=2)
    one, other = (request.config.sampling.seed for request in slot.requests[-2:])
    assert other == one + 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_of_choices_is_one_answer(client: TestClient, path: str) -> None:
    asked: dict[str, Any] = {"n": 3, "stream_options": {"include_usage": True}}
    whole, chunks = answer_of(client, path, **asked), chunks_of(client, path, **asked)
    assert texts_of(chunks) == dict.fromkeys(range(3), TEXT)
    assert len({chunk["id"] for chunk in chunks}) == 1
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"] == "stop"]
    assert ends == [0, 1, 2]
    usages = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    for name in ("prompt_tokens", "completion_tokens"):
        assert [usage[name] for usage in usages] == [whole["usage"][name]]
    assert (whole["usage"]["completion_tokens"], chunks[-1]["choices"]) == (3 * (len(TEXT) + 1), [])
    if path == CHAT:
        first = [chunk["choices"][0]["delta"].get("role") for chunk in chunks if chunk["choices"]]
        assert first.count("assistant") == 3


def test_too_many_choices_are_refused_before_anything_is_written(
    client: TestClient, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fields in ({"prompt": ["a", "b"], "n": 65}, {"prompt": ["a"] * 128, "n": 2}):
        assert_error(client.post(COMPLETIONS, json=fields), 400, "^n: .* send them in several requests$")
    assert_error(client.post(COMPLETIONS, json={"prompt": ["a", [9] * (N_CTX + 1)]}), 400, f" {N_CTX + 1} tokens > ")
    monkeypatch.setattr(generation_request, "_MAX_SCORED", 30)
    fields = {"prompt": ["a"] * 5, "echo": True, "max_tokens": 0}
    assert_error(client.post(COMPLETIONS, json=fields | {"logprobs": 3}), 400, "^echo: 10 tokens with logprobs")
    assert not slot.requests
    for more in ({"logprobs": 2}, {"logprobs": None}):
        assert len(answer_of(client, COMPLETIONS, **fields, **more)["choices"]) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_a_later_choice_ends_the_answer(client: TestClient, slot: ScriptedSlot, stream: bool) -> None:
    write = slot.write

    def fail(request: Any) -> bool:
        slot.error = RuntimeError("broken") if len(slot.requests) == 1 else None
        return write(request)

    slot.write = fail  # type: ignore[method-assign]
    response = client.post(COMPLETIONS, json={"prompt": ["a", "b", "c"], "stream": stream})
    assert len(slot.requests) == 2
    assert "broken" in response.text
    assert response.status_code == (200 if stream else 500)
    assert response.text.endswith("data: [DONE]\n\n") == stream


def test_other_clients_have_their_turns_between_choices(make_lead: Callable[..., Lead], slot: ScriptedSlot) -> None:
    slot.hold()
    with make_lead() as lead, ThreadPoolExecutor() as pool:

        def ask(**fields: Any) -> int:
            return httpx.post(lead.url + COMPLETIONS, json=ASKED | fields, timeout=PATIENCE_S).status_code

        several = pool.submit(ask, prompt="other", n=3, max_tokens=1)
        wait_until(lambda: lead.n_texts == 1)
        other = pool.submit(ask, max_tokens=1)  # for less: its turn is before the next choice
        wait_until(lambda: lead.n_texts == 2)
        slot.go_on()
        assert (several.result(), other.result()) == (200, 200)
    assert [len(request.prompt) for request in slot.requests] == [6, 2, 6, 6]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_all_choices(
    make_lead: Callable[..., Lead], slot: ScriptedSlot, stream: bool
) -> None:
    slot.hold(1)
    with make_lead() as lead:
        with connect(lead, request(COMPLETIONS, json.dumps(ASKED | {"n": 5, "stream": stream}).encode())) as client:
            wait_until(lambda: slot.requests)
            if stream:  # what is not read when it leaves resets the connection
                assert select.select([client], [], [], PATIENCE_S)[0]
        wait_until(lambda: lead.n_texts == 0)
        slot.go_on()
        assert httpx.post(lead.url + COMPLETIONS, json=ASKED, timeout=PATIENCE_S).status_code == 200
    assert len(slot.requests) == 2


def test_no_choice_begins_after_the_lead_has_stopped(make_lead: Callable[..., Lead], slot: ScriptedSlot) -> None:
    slot.hold()
    with make_lead() as lead, ThreadPoolExecutor() as pool:
        answer = pool.submit(lambda: httpx.post(lead.url + COMPLETIONS, json=ASKED | {"n": 3}, timeout=PATIENCE_S))
        wait_until(lambda: slot.requests)
        lead.stop()
        slot.go_on()
        assert answer.result().status_code == 503
    assert len(slot.requests) == 1


def test_a_full_queue_ends_no_answer_of_which_a_choice_has_begun(
    make_lead: Callable[..., Lead], slot: ScriptedSlot
) -> None:
    slot.hold(1)
    slot.n_together = 2
    with make_lead(n_queue=1, api_keys=["one", "two"]) as lead, ThreadPoolExecutor() as pool:

        def ask(key: str, **fields: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"}
            return httpx.post(lead.url + COMPLETIONS, json=ASKED | fields, headers=headers, timeout=PATIENCE_S)

        several = pool.submit(ask, "one", n=2, stream=True)
        wait_until(lambda: lead.n_texts == 2)  # the second waits
        other = pool.submit(ask, "two")
        wait_until(lambda: lead.n_texts == 3 or several.done())
        slot.go_on()
        assert "the queue is full" not in several.result().text
        assert several.result().text.count('"finish_reason":"stop"') == 2
        assert other.result().status_code == 200


# The prompt as part of the text


def test_an_echo_has_the_logprobs_of_all_tokens(client: TestClient, slot: ScriptedSlot) -> None:
    """Also of the end token, which is not in the text: lm-eval leaves out the last one, whatever it is."""
    slot.text = "é"
    whole = answer_of(client, COMPLETIONS, prompt="bcé", echo=True, logprobs=1)["choices"][0]
    tokens, (first, *rest) = [BOS, *tokens_of("bcé"), *tokens_of("é"), EOS], whole["logprobs"]["top_logprobs"]
    assert whole["text"] == "bcéé"
    assert whole["logprobs"]["token_logprobs"] == [None, *(-float(token) for token in tokens[1:])]
    assert whole["logprobs"]["text_offset"] == [0, 0, 1, 2, 2, 3, 3, 4]
    assert whole["logprobs"]["tokens"][1:4] == ["b", "c", "bytes:\\xc3"]
    assert first is None
    assert all(-1.0 in one.values() for one in rest[:-1]), "the likeliest one"
    assert [one[name] for one, name in zip(rest, whole["logprobs"]["tokens"][1:], strict=True)] == [
        -float(token) for token in tokens[1:]
    ]


@pytest.mark.parametrize(
    ("fields", "n_tokens", "text"),
    [
        ({"prompt": IDS}, 2, "bc"),
        ({"prompt": IDS, "max_tokens": 1}, 3, f"bc{TEXT[0]}"),
        ({"prompt": ["bc", IDS], "max_tokens": 1}, 4, f"bc{TEXT[0]}"),
        ({"prompt": "bc", "max_tokens": 40, "stop": ["is"]}, 3 + len("Paris"), "bcPar"),
        ({"prompt": "bc", "logprobs": None}, 0, "bc"),
        ({"prompt": "bc", "logprobs": False}, 0, "bc"),
        ({"prompt": "bc", "echo": False}, 0, ""),
    ],
)
def test_what_an_echo_has(client: TestClient, fields: dict[str, Any], n_tokens: int, text: str) -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 0, "max_tokens": 0} | fields
    whole, chunks = answer_of(client, COMPLETIONS, **asked), chunks_of(client, COMPLETIONS, **asked)
    found = whole["choices"][0]
    assert found["text"] == text
    assert texts_of(chunks) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    if not n_tokens:
        assert found["logprobs"] is None
        return
    assert whole["usage"]["completion_tokens"] == asked["max_tokens"] * len(whole["choices"]) or asked.get("stop")
    assert len(found["logprobs"]["tokens"]) >= n_tokens
    for name, values in found["logprobs"].items():
        parts = [c["logprobs"][name] for chunk in chunks for c in chunk["choices"] if c["index"] == 0 and c["logprobs"]]
        assert [value for part in parts for value in part] == values


def test_an_echo_of_tokens_spells_special_ones_and_one_of_a_text_is_that_text(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spelling(self: ScriptedModel, tokens: Any) -> bytes:
        return b"".join(b"<s>" if token == BOS else self.piece(token) for token in tokens)

    monkeypatch.setattr(ScriptedModel, "spelling", spelling)
    asked: dict[str, Any] = {"echo": True, "logprobs": 0, "max_tokens": 0}
    for prompt, text, offsets in (("bc", "bc", [0, 0, 1]), ([BOS, *IDS], "<s>bc", [0, 3, 4])):
        (choice,) = answer_of(client, COMPLETIONS, prompt=prompt, **asked)["choices"]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == (text, offsets)
        assert choice["finish_reason"] == "length"


def test_each_choice_of_a_stream_begins_with_its_whole_echo(client: TestClient) -> None:
    asked: dict[str, Any] = {"prompt": ["ab", "bcé"], "echo": True, "logprobs": 0, "max_tokens": 2}
    whole, chunks = answer_of(client, COMPLETIONS, **asked), chunks_of(client, COMPLETIONS, **asked)
    for i, choice in enumerate(whole["choices"]):
        parts = [
            one["logprobs"]["tokens"]
            for chunk in chunks
            for one in chunk["choices"]
            if one["index"] == i and one["logprobs"]
        ]
        assert [token for part in parts for token in part] == choice["logprobs"]["tokens"]


def test_chats_have_no_echo(client: TestClient) -> None:
    assert_error(client.post(CHAT, json=ASKED | {"echo": True}), 400, "^echo is not supported here: send a prompt")
    assert client.post(CHAT, json=ASKED | {"echo": False}).status_code == 200
