"""A lead that a Python program starts, in its own process."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import llama_cpp.llama_chat_format
import pytest
from starlette.types import Receive, Scope, Send

import duo
from duo.engine.slot import TextRequest
from duo.link.listener import Listener
from duo.spec.costs import Calibration
from duo.spec.types import Step
from tests.gguf_files import tiny_llama
from tests.serving import PATIENCE_S

TEMPLATE = "{% for message in messages %}{{ message.role[0] }} {{ message.content }} {% endfor %}"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return (
        tiny_llama(folder / "target.gguf", depth=0.05, chat_template=TEMPLATE),
        tiny_llama(folder / "draft.gguf", depth=0.02),
    )


@pytest.fixture
def llm(pair: tuple[Path, Path]) -> Iterator[duo.Engine]:
    with duo.load(*pair, n_ctx=256, n_threads=1, draft_n_threads=1, exact=True, profile=False) as engine:
        yield engine


@pytest.fixture
def lead(llm: duo.Engine) -> Iterator[duo.Lead]:
    with duo.Lead(llm, port=0) as lead:
        yield lead


def get(lead: duo.Lead, path: str) -> httpx.Response:
    return httpx.get(lead.url + path, timeout=PATIENCE_S)


def post(lead: duo.Lead, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(lead.url + path, json=fields, timeout=PATIENCE_S)


def chat(lead: duo.Lead, **more: Any) -> str:
    answer = post(lead, "/v1/chat/completions", **CHAT | more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def streamed_chat(lead: duo.Lead) -> str:
    request = {**CHAT, "stream": True}
    with httpx.stream("POST", f"{lead.url}/v1/chat/completions", json=request, timeout=PATIENCE_S) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[-1]["choices"][0]["finish_reason"] is not None
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_three_lines_make_a_server(pair: tuple[Path, Path]) -> None:
    with duo.load(*pair, profile=False) as llm, duo.Lead(llm, port=0) as lead:
        assert get(lead, "/health").json() == {"status": "ok"}
        (model,) = get(lead, "/v1/models").json()["data"]
        assert (model["id"], model["meta"]["n_ctx"]) == ("target", llm.slot.n_ctx)
        expected = llm.chat(CHAT["messages"], max_tokens=CHAT["max_tokens"]).text
        assert expected
        assert chat(lead) == expected
        assert streamed_chat(lead) == expected


def test_three_lines_with_the_demo_pair(demo_pair: tuple[Path, Path]) -> None:
    with duo.load("demo", n_ctx=256, offline=True, profile=False) as llm, duo.Lead(llm, port=0) as lead:
        messages = [{"role": "user", "content": "What is 2+2? Answer with a number."}]
        assert "4" in chat(lead, messages=messages)
        assert get(lead, "/v1/models").json()["data"][0]["id"] == demo_pair[0].stem


def test_the_engine_outlives_its_lead(llm: duo.Engine) -> None:
    with duo.Lead(llm, port=0) as lead:
        expected = chat(lead)
    lead.close()
    with pytest.raises(httpx.ConnectError):
        get(lead, "/health")
    assert llm.chat(CHAT["messages"], max_tokens=CHAT["max_tokens"]).text == expected
    with duo.Lead(llm, port=0, alias="again") as lead:
        assert chat(lead, model="again") == expected


def test_a_lead_without_an_engine_says_that_it_is_loading(llm: duo.Engine) -> None:
    with duo.Lead(port=0) as lead:
        answer = get(lead, "/health")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        lead.load(llm)
        assert get(lead, "/health").status_code == 200
        lead.stop()
        lead.wait()
        assert "stopping" in get(lead, "/health").text


def test_an_address_that_others_reach_needs_a_key(llm: duo.Engine) -> None:
    with pytest.raises(duo.UsageError, match=r"host 0\.0\.0\.0: .* must know a key"):
        duo.Lead(llm, host="0.0.0.0", port=0)


def test_a_program_is_told_steps_and_texts(llm: duo.Engine) -> None:
    steps: list[Step] = []
    texts: list[TextRequest] = []
    with duo.Lead(llm, port=0, on_step=steps.append, on_text=texts.append) as lead:
        text = chat(lead)
    assert b"".join(piece for step in steps for piece in step.pieces).decode("utf-8", "replace") == text
    (told,) = texts
    assert told.metrics.stop == "token limit"


def test_a_program_that_cannot_hear_holds_nobody_up(llm: duo.Engine, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: TextRequest) -> None:
        raise RuntimeError("the sky is falling")

    with duo.Lead(llm, port=0, on_text=fail) as lead:
        assert chat(lead) == chat(lead)
    assert caplog.text.count("RuntimeError: the sky is falling") == 2


# What is learned


def test_the_policy_lives_as_long_as_the_engine(
    llm: duo.Engine, lead: duo.Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = llm.slot.policy
    chat(lead)
    n_measured = policy.alone.n_measured(1)
    assert n_measured > 0
    llm.call(lambda slot: slot.policy.learn_scores([(1.0, True)] * 50))
    learned = policy.calibration.state()
    assert learned["mean"] > Calibration().state()["mean"]
    begun: list[dict[str, Any]] = []
    begin = policy.begin

    def watched(n_prompt: int, n_room: int | None = None, mode: str = "") -> None:
        begin(n_prompt, n_room, mode)
        begun.append(policy.calibration.state())

    monkeypatch.setattr(policy, "begin", watched)
    chat(lead)
    assert llm.slot.policy is policy
    assert begun == [learned], "nothing was lost between the two"
    assert policy.alone.n_measured(1) >= n_measured


# What goes wrong


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_in_a_text_is_logged_and_told_until_the_next_good_one(
    lead: duo.Lead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the sky is falling")

    expected = chat(lead)
    with monkeypatch.context() as broken:
        broken.setattr("duo.engine.slot.choosing", fail)
        answer = post(lead, "/v1/chat/completions", **CHAT, stream=stream)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.name.startswith("duo.")
    assert "Traceback" in caplog.text
    assert "RuntimeError: the sky is falling" in caplog.text
    health = get(lead, "/health")
    assert (health.status_code, "the sky is falling" in health.text) == (500, True)
    assert chat(lead) == expected
    assert get(lead, "/health").json() == {"status": "ok"}


def test_what_a_client_does_wrong_is_no_fault(lead: duo.Lead, caplog: pytest.LogCaptureFixture) -> None:
    for wrong in ({"grammar": "root ::= none"}, {"temperature": -1}):
        assert post(lead, "/v1/chat/completions", **CHAT | wrong).status_code == 400
    assert get(lead, "/health").status_code == 200
    assert not [record for record in caplog.records if record.name.startswith(("duo.engine", "duo.server"))]


def test_a_fault_in_the_event_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("the sky is falling")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with Listener(app, "127.0.0.1", 0) as listener:
        assert httpx.get(f"http://127.0.0.1:{listener.port}/").status_code == 204
    assert "a fault in the event loop" in caplog.text
    assert "RuntimeError: the sky is falling" in caplog.text


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_the_log_of_asyncio_is_left_alone(llm: duo.Engine, level: int) -> None:
    log = logging.getLogger("asyncio")
    before = log.level
    log.setLevel(level)
    try:
        with duo.Lead(llm, port=0) as lead:
            assert get(lead, "/health").status_code == 200
            assert log.level == level
        assert log.level == level
    finally:
        log.setLevel(before)


# The chat template


def test_the_template_is_compiled_once(lead: duo.Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    class Counted(llama_cpp.llama_chat_format.Jinja2ChatFormatter):  # type: ignore[misc]
        def __init__(self, template: str, *arguments: Any, **more: Any) -> None:
            compiled.append(template)
            super().__init__(template, *arguments, **more)

    monkeypatch.setattr(llama_cpp.llama_chat_format, "Jinja2ChatFormatter", Counted)
    texts = {chat(lead, max_tokens=1) for _ in range(3)}
    with ThreadPoolExecutor(4) as others:
        texts |= set(others.map(lambda _: chat(lead, max_tokens=1), range(8)))
    assert len(texts) == 1
    assert compiled == [TEMPLATE]
