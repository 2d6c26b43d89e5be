"""The lead and clients that mean it no good, or do not know better; how it begins and ends, and what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import SLOW_TARGET, assert_refused, duo
from tests.serving import PATIENCE_S, LeadProcess

CONTEXT = ("--ctx-size", "512")
HASTE_S = 15.0  # for what a lead with small limits must have done
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
TEXTS = ("/v1/completions", "/v1/chat/completions")
HUNDRED_MB = 100 * 1024 * 1024
HAS_PROC = Path("/proc/self/fd").is_dir()

# Code for `before`: no patience, and small buffers for what is sent.
IMPATIENT = """
import socket
import duo.link.listener as listener, duo.server.lead
duo.server.lead.BODY_S = listener.HEADERS_S = listener.READ_S = listener.LINGER_S = 0.5
bind = listener._bind
def small(*arguments):
    sockets = bind(*arguments)
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return sockets
listener._bind = small
"""


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with LeadProcess(demo_pair[1], *CONTEXT) as process:
        yield process


@pytest.fixture(scope="module")
def impatient(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    """Its name is so long that few events of a stream fill all buffers."""
    with LeadProcess(demo_pair[1], *CONTEXT, "--alias", "x" * 10_000, before=IMPATIENT + SLOW_TARGET) as process:
        yield process


@pytest.fixture(scope="module")
def keyed(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadProcess]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("sk-four\n\n  sk-five  \n", encoding="utf-8")
    keys = ("--api-key", "sk-one,sk-two", "--api-key", "sk-three", "--api-key-file", file)
    names = ("--cors-origin", "https://chat.example", "--allowed-host", "lead.example")
    with LeadProcess(demo_pair[1], *CONTEXT, *keys, *names) as process:
        yield process


def connect(lead: LeadProcess, window: int | None = None) -> socket.socket:
    """A connection; `window` is how many bytes may be on their way."""
    link = socket.socket()
    if window is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    link.settimeout(PATIENCE_S)
    try:
        link.connect(("127.0.0.1", lead.port))
    except OSError:
        link.close()
        raise
    return link


def request(path: str, body: bytes = b"", *, method: str = "POST", length: int | None = None, more: str = "") -> bytes:
    n = len(body) if length is None else length
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n{more}\r\n".encode() + body


def read_answer(link: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer that says how long it is."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = link.recv(65536)
        assert more, f"it was closed after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += link.recv(65536)
    return int(first.split()[1]), headers, body


def read_to_the_end(link: socket.socket) -> bytes:
    """All that comes until the lead closes the connection."""
    data = b""
    try:
        while more := link.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


def is_closed_while(link: socket.socket, send: bytes) -> bool:
    """Whether the lead closes a connection on which `send` comes again and again, in time."""
    end = time.monotonic() + HASTE_S
    while time.monotonic() < end:
        try:
            link.sendall(send)
            if select.select([link], [], [], 0.05)[0] and not link.recv(65536):
                return True
        except (ConnectionResetError, BrokenPipeError):
            return True
    return False


def send(lead: LeadProcess, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with closing(connect(lead)) as link:
        link.sendall(data)
        return read_answer(link)


# Without the certificates, which httpx would read each time.


def post(lead: LeadProcess, path: str, body: bytes) -> httpx.Response:
    return httpx.post(lead.url + path, content=body, timeout=PATIENCE_S, verify=False)


def ask(lead: LeadProcess, path: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return httpx.post(lead.url + path, json=fields, headers=headers, timeout=PATIENCE_S, verify=False)


def get(lead: LeadProcess, path: str, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(lead.url + path, headers=names, timeout=PATIENCE_S, verify=False)


def assert_error(answer: httpx.Response, status: int, said: str = "") -> None:
    """An error in OpenAI's shape."""
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert said in error["message"]
    assert len(answer.content) < 10_000


def assert_works(lead: LeadProcess) -> None:
    """It lives, and writes."""
    assert lead.process.poll() is None, lead.lines[-5:]
    assert lead.write("The capital of France is", 2)


def wait_until(holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def assert_said_nothing_odd(lead: LeadProcess) -> None:
    """Nothing on stderr but what a user is meant to read."""
    odd = [line for line in lead.lines if not line.startswith(("duo: ", "prompt: ", "tokens: "))]
    assert not odd, odd[:5]


# Bodies

_BODIES = {
    "nothing": b"",
    "a word": b"hello",
    "half an object": b'{"prompt": "a"',
    "too much": b'{"prompt": "a"} {}',
    "null": b"null",
    "a number": b"5",
    "a list": b"[]",
    "a text": b'"prompt"',
    "no UTF-8": b'{"prompt": "\xff\xfe", "content": "\xff"}',
    "half a character": b'{"prompt": "\\ud800", "content": "\\ud800"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "out of range": b'{"temperature": 1e999}',
    "brackets": b"[" * 100_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "braces": b'{"a":' * 100_000,
    "nested values": b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested schema": b'{"prompt": "a", "json_schema": ' + b'{"items":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "nested messages": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested tokens": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a form": b"prompt=a&max_tokens=1",
}


@pytest.mark.parametrize("path", [*TEXTS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("name", _BODIES)
def test_a_body_that_is_no_request(lead: LeadProcess, name: str, path: str) -> None:
    assert_error(post(lead, path, _BODIES[name]), 400)


_WRONG: dict[str, list[Any]] = {
    "prompt": [None, 1, {}, [None], [[1]], [1.5], [True], [-1], [49152], [2**64], ["a", "b"], []],
    "max_tokens": [-2, 2**31, 2**63, 10**400, 1.5, "5", True, [], {}],
    "max_completion_tokens": [-2, "5"],
    "n_predict": [-2, "5"],
    "temperature": [-0.1, 1e7, "hot", True, []],
    "top_p": [-0.1, 1.1, "1"],
    "top_k": [-2, 2**31, 0.5],
    "min_p": [-1, 2],
    "typical_p": [-1, 2],
    "repeat_penalty": [0, -1, 101],
    "repeat_last_n": [-2, 2**31],
    "presence_penalty": [-101, 101, "1"],
    "frequency_penalty": [-101, 101, "1"],
    "seed": [-2, 2**63, 1.5, "1"],
    "stop": ["", [""], [1], {}, ["x"] * 33, "x" * 1025],
    "logit_bias": [[], {"a": 1}, {"-1": 1}, {"49152": 1}, {"1": 101}, {"1": "1"}, {"": 1}, {"1.5": 1}, {"²": 1}],
    "stream": ["yes", 1],
    "stream_options": [1, {"include_usage": "yes"}],
    "n": [0, 2, -1, 10**30, "1"],
    "response_format": ["json", {"type": 5}, {"type": "xml"}],
    "grammar": [5, " ", "root", "\0", "root ::= (", 'root ::= "a', "x" * (2**18 + 1)],
    "json_schema": ["{}", [], {"type": "nonsense"}, {"$ref": "#/none"}, {"$ref": "https://192.0.2.1/schema"}],
    "ignore_eos": ["yes", 1],
    "model": [1, {}],
    "echo": [True, 1],
    "suffix": ["x", 1],
    "tools": [{}, [1]],
    "functions": [{}, [1]],
    "logprobs": [True, 5, "yes"],
}


@pytest.mark.parametrize("field", _WRONG)
def test_a_value_that_cannot_be_meant(lead: LeadProcess, field: str) -> None:
    for value in _WRONG[field]:
        fields = {"prompt": "a", "max_tokens": 1, field: value}
        assert_error(post(lead, "/v1/completions", json.dumps(fields).encode()), 400)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        {},
        "hello",
        [1],
        [{}],
        [{"content": "a"}],
        [{"role": 1, "content": "a"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"text": "a"}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": "a"}] * 4097,
        [{"role": "user", "content": "a"}] * 4096,  # which are too long for the context
    ],
    ids=lambda messages: str(messages)[:40],
)
def test_messages_that_are_none(lead: LeadProcess, messages: Any) -> None:
    body = json.dumps({"messages": messages, "max_tokens": 1}).encode()
    assert_error(post(lead, "/v1/chat/completions", body), 400)


def test_a_bias_of_many_digits(lead: LeadProcess) -> None:
    body = {"prompt": "a", "max_tokens": 1, "logit_bias": {"0" * 5000: 1}}
    assert_error(post(lead, "/v1/completions", json.dumps(body).encode()), 400)


def test_a_bias_with_zeros_in_front(lead: LeadProcess) -> None:
    body = {"prompt": "a", "max_tokens": 1, "logit_bias": {"0" * 12 + "999999": 1}}
    assert_error(post(lead, "/v1/completions", json.dumps(body).encode()), 400)


def test_a_prompt_beyond_the_context(lead: LeadProcess) -> None:
    long = "word " * 2000
    for answer in (
        ask(lead, "/v1/completions", prompt=long),
        ask(lead, "/v1/chat/completions", messages=[_user(long)]),
    ):
        assert_error(answer, 400, "the context 512")
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert_error(ask(lead, "/v1/completions", prompt="word " * 1_000_000), 400, "the context 512")


def test_an_empty_prompt(lead: LeadProcess) -> None:
    assert_error(ask(lead, "/v1/completions", prompt=""), 400, "no tokens")


def test_a_model_that_is_not_here(lead: LeadProcess) -> None:
    answer = ask(lead, "/v1/completions", prompt="a", model="gpt" * 1000)
    assert_error(answer, 404, "gpt")
    assert answer.json()["error"]["code"] == "model_not_found"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(sorted(set(_WRONG) - {"max_completion_tokens", "n_predict", "max_tokens", "prompt"}))


@given(fields=st.dictionaries(_FIELDS, _JSON, max_size=3))
def test_whatever_is_asked_is_answered_or_refused(lead: LeadProcess, fields: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1} | fields).encode()
    answer = post(lead, "/v1/completions", body)
    assert answer.status_code in (200, 400, 404), (fields, answer.text)


def test_strange_texts(lead: LeadProcess) -> None:
    for text in ("a\0b", "\uffff\u202e", "<|im_end|>" * 20, "\r\n\r\n", "{{ 1/0 }}{% raw %}"):
        assert ask(lead, "/v1/completions", prompt=text, max_tokens=1).status_code == 200
        assert ask(lead, "/v1/chat/completions", messages=[_user(text)], max_tokens=1).status_code == 200


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# What would end the process

_KILLERS: dict[str, dict[str, Any]] = {
    "brackets": {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
    "a long text in a schema": {"json_schema": {"type": "string", "maxLength": 50_000}},
    "the longest text in a schema": {"json_schema": {"type": "string", "maxLength": 9999}},
    "many texts in a schema": {"json_schema": {"anyOf": [{"type": "string", "maxLength": 9999}] * 1000}},
    "a pattern": {"json_schema": {"type": "string", "pattern": "^((a{0,9999}){0,9999}){0,9999}$"}},
    "repetitions": {"grammar": 'root ::= ((("a"{1000}){1000}){1000}){1000}'},
    "left recursion": {"grammar": 'root ::= root "a" | "a"'},
    "brackets in quotes": {"grammar": "root ::= " + '(")"' * 60_000},
    "brackets in a class": {"grammar": "root ::= " + "([)]" * 60_000},
    "brackets in comments": {"grammar": "root ::= " + "(#)\n" * 60_000},
    "brackets after a comment": {"grammar": "root ::= #\r" + "(" * 60_000},
}


def test_no_request_ends_the_lead(demo_pair: tuple[Path, Path]) -> None:
    left, killed_by = list(_KILLERS), []
    while left:
        with LeadProcess(demo_pair[1], *CONTEXT) as lead:
            while left:
                name = left.pop(0)
                try:
                    answer = ask(lead, "/v1/completions", prompt="a", max_tokens=1, **_KILLERS[name])
                except httpx.RemoteProtocolError:
                    killed_by.append((name, lead.finish()))
                    break
                assert answer.status_code in (200, 400)
                assert_works(lead)
    assert not killed_by


def test_pieces_of_more_tokens_than_may_be(lead: LeadProcess) -> None:
    body = json.dumps({"content": "1" * (2**20 + 1), "with_pieces": True}).encode()
    assert_error(post(lead, "/tokenize", body), 400)


def test_what_is_wrong_is_told_in_few_words(lead: LeadProcess) -> None:
    long = "x" * 50_000
    for fields in ({"grammar": f"root ::= a){long}"}, {"json_schema": {"type": long}}):
        assert_error(ask(lead, "/v1/completions", prompt="a", **fields), 400)
    assert_error(ask(lead, "/v1/completions", prompt="a", response_format={"type": long}), 400, "response_format")
    assert_error(ask(lead, "/v1/chat/completions", messages=[{"role": "a", "content": [{"type": long}]}]), 400)


# Large bodies


def test_a_large_body_is_refused_before_it_comes(lead: LeadProcess) -> None:
    with closing(connect(lead)) as link:
        link.sendall(request("/v1/completions", length=HUNDRED_MB))
        assert read_answer(link)[0] == 413


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_large_body_in_chunks_is_not_read_whole(lead: LeadProcess, path: str) -> None:
    chunk = f"{65536:x}\r\n".encode() + b" " * 65536 + b"\r\n"
    with closing(connect(lead)) as link:
        link.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        n_sent = 0
        while not select.select([link], [], [], 0)[0] and n_sent < HUNDRED_MB:
            link.sendall(chunk)
            n_sent += 65536
        assert read_answer(link)[0] == 413
    assert n_sent < HUNDRED_MB // 2


@pytest.mark.skipif(not HAS_PROC, reason="there is no /proc")
def test_a_client_that_sends_a_large_body_all_the_same(lead: LeadProcess) -> None:
    """What it sends is not kept."""
    before = _memory(lead, "VmHWM")
    with closing(connect(lead)) as link:
        link.sendall(request("/v1/completions", length=HUNDRED_MB))
        try:
            for _ in range(HUNDRED_MB // 2**20):
                link.sendall(b" " * 2**20)
        except (ConnectionResetError, BrokenPipeError):
            pass  # which is as good
        else:
            assert read_answer(link)[0] == 413
    assert _memory(lead, "VmHWM") - before < 40e6
    assert_works(lead)


def test_the_largest_body(lead: LeadProcess) -> None:
    body = b'{"content": "a", "more": "' + b"x" * (8 * 2**20 - 28) + b'"}'
    assert len(body) == 8 * 2**20
    assert post(lead, "/tokenize", body).status_code == 200
    assert_error(post(lead, "/tokenize", body + b" "), 413)


# Slow clients


@pytest.mark.parametrize("head", [b"", b"G", HEALTH[:-10], HEALTH[:-1]])
def test_a_head_that_does_not_come(impatient: LeadProcess, head: bytes) -> None:
    with closing(connect(impatient)) as link:
        link.sendall(head)
        assert read_to_the_end(link) == b""


def test_a_second_head_that_does_not_come(impatient: LeadProcess) -> None:
    with closing(connect(impatient)) as link:
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200
        link.sendall(HEALTH[:-10])
        assert read_to_the_end(link) == b""


def test_a_head_that_comes_for_ever(impatient: LeadProcess) -> None:
    with closing(connect(impatient)) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        assert is_closed_while(link, b"X-More: 1\r\n")


def test_a_body_that_does_not_come(impatient: LeadProcess) -> None:
    for path in (*TEXTS, "/tokenize", "/detokenize"):
        with closing(connect(impatient)) as link:
            link.sendall(request(path, b'{"prompt"', length=1000))
            status, _, body = read_answer(link)
            assert status == 408
            assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/completions", "/nowhere"])
def test_a_body_that_comes_for_ever(impatient: LeadProcess, path: str) -> None:
    with closing(connect(impatient)) as link:
        link.sendall(request(path, b"{", length=10**6))
        assert read_answer(link)[0] in (404, 408)
        assert is_closed_while(link, b" ")


def test_a_body_that_comes_after_the_answer(impatient: LeadProcess) -> None:
    with closing(connect(impatient)) as link:
        for _ in range(3):
            link.sendall(request("/nowhere", length=2))
            assert read_answer(link)[0] == 404
            link.sendall(b"{}")
            time.sleep(0.3)  # of the half second that it has
        link.sendall(HEALTH)
        assert read_answer(link)[0] == 200


def _ask_and_do_not_read(lead: LeadProcess) -> socket.socket:
    link = connect(lead, window=4096)
    fields = {"prompt": "a", "max_tokens": -1, "ignore_eos": True, "stream": True}
    link.sendall(request("/v1/completions", json.dumps(fields).encode()))
    return link


def test_a_reader_that_is_slow_holds_nobody_up(impatient: LeadProcess) -> None:
    with closing(_ask_and_do_not_read(impatient)):
        wait_until(lambda: impatient.metric("llamacpp:requests_processing") == 1)
        for _ in range(20):
            assert get(impatient, "/health").status_code == 200
            assert ask(impatient, "/tokenize", content="a b").status_code == 200
    assert impatient.write("The capital of France is", 2)


def test_a_reader_that_is_slow_is_cut_off(impatient: LeadProcess) -> None:
    before = impatient.metric("llamacpp:tokens_predicted_total")
    with closing(_ask_and_do_not_read(impatient)) as link:
        assert impatient.write("The capital of France is", 2)
        # Not the whole of what the context would hold.
        assert impatient.metric("llamacpp:tokens_predicted_total") - before < 300
        assert b"[DONE]" not in read_to_the_end(link)


def test_a_reader_that_leaves_without_reading(impatient: LeadProcess) -> None:
    before = impatient.metric("llamacpp:tokens_predicted_total")
    with closing(_ask_and_do_not_read(impatient)) as link:
        wait_until(lambda: impatient.metric("llamacpp:requests_processing") == 1)
        select.select([link], [], [], PATIENCE_S)
    assert impatient.write("The capital of France is", 2)
    assert impatient.metric("llamacpp:tokens_predicted_total") - before < 300


def test_slow_clients_are_no_news(demo_pair: tuple[Path, Path]) -> None:
    more = ("--alias", "x" * 10_000)
    with LeadProcess(demo_pair[1], *CONTEXT, *more, before=IMPATIENT + SLOW_TARGET) as lead:
        with closing(_ask_and_do_not_read(lead)):
            wait_until(lambda: lead.metric("llamacpp:requests_processing") == 1)
            assert lead.write("The capital of France is", 2)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
        assert_said_nothing_odd(lead)


# Paths, methods and names


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/none", "/../etc/passwd", "/%00", "/health/x", "/v1/embeddings"])
def test_a_path_that_is_not_here(lead: LeadProcess, path: str) -> None:
    for method in ("GET", "POST"):
        status, _, body = send(lead, request(path, method=method))
        assert status == 404
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", {"POST"}),
        ("PUT", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("OPTIONS", "/tokenize", {"POST"}),
        ("BREW", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_a_method_that_is_not_meant(lead: LeadProcess, method: str, path: str, allowed: set[str]) -> None:
    status, headers, body = send(lead, request(path, method=method))
    assert status == 405
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert set(headers["allow"].split(", ")) == allowed


_NO_HTTP = {
    "a word": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "two lengths": request("/tokenize", more="Content-Length: 5\r\n"),
    "a negative length": request("/tokenize", length=-1),
    "a length of many digits": request("/tokenize", length=10**40),
    "an odd encoding": request("/tokenize", more="Transfer-Encoding: gzip\r\n"),
    "a header that is none": b"GET /health HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
    "a NUL": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n",
    "no version": b"GET /health HTTP/x\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", _NO_HTTP)
def test_what_is_no_http(lead: LeadProcess, name: str) -> None:
    with closing(connect(lead)) as link:
        link.sendall(_NO_HTTP[name])
        assert read_answer(link)[0] in (400, 501)
        assert read_to_the_end(link) is not None


def test_a_head_without_end(lead: LeadProcess) -> None:
    with closing(connect(lead)) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert is_closed_while(link, b"x" * 16384)


def test_bad_clients_are_no_news(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT) as lead:
        for data in _NO_HTTP.values():
            with closing(connect(lead)) as link:
                link.sendall(data)
                read_to_the_end(link)
        for body in _BODIES.values():
            post(lead, "/v1/completions", body)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
        assert_said_nothing_odd(lead)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "[::2]", "", "localhost@evil"]
)
def test_another_name_for_the_lead(lead: LeadProcess, host: str) -> None:
    """As a page has it that lets its own name point to this machine: DNS rebinding."""
    status, _, body = send(lead, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert (status, json.loads(body)["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize("host", ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:5555", "[::1]", "[::1]:5555"])
def test_names_of_this_machine(lead: LeadProcess, host: str) -> None:
    assert send(lead, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())[0] == 200


def test_a_name_that_is_allowed(keyed: LeadProcess, lead: LeadProcess) -> None:
    data = b"GET /health HTTP/1.1\r\nHost: LEAD.example:8080\r\n\r\n"
    assert send(keyed, data)[0] == 200
    assert send(lead, data)[0] == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil", "https://chat.example", "x"]
)
def test_a_page_of_another_site(lead: LeadProcess, origin: str) -> None:
    for answer in (
        get(lead, "/v1/models", Origin=origin),
        httpx.post(f"{lead.url}/v1/completions", content=b'{"prompt": "a"}', headers={"Origin": origin}),
        httpx.options(f"{lead.url}/v1/completions", headers=_preflight(origin)),
    ):
        assert_error(answer, 403, "allow this origin")
        assert not any(name.startswith("access-control-") for name in answer.headers)


def test_a_page_of_the_leads_own(lead: LeadProcess) -> None:
    assert get(lead, "/v1/models", Origin=lead.url).status_code == 200


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//[x]"])
def test_an_origin_that_is_none(lead: LeadProcess, origin: str) -> None:
    assert send(lead, request("/health", method="GET", more=f"Origin: {origin}\r\n"))[0] == 403


def _preflight(origin: str) -> dict[str, str]:
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    return {"Origin": origin} | wanted


def test_a_page_that_is_allowed(keyed: LeadProcess) -> None:
    origin = "https://chat.example"
    first = httpx.options(f"{keyed.url}/v1/chat/completions", headers=_preflight(origin))
    assert first.status_code == 200
    assert first.headers["access-control-allow-origin"] == origin
    assert "POST" in first.headers["access-control-allow-methods"]
    assert "authorization" in first.headers["access-control-allow-headers"].lower()
    for key, status in (("sk-one", 200), ("sk-none", 401)):
        answer = get(keyed, "/v1/models", Origin=origin, Authorization=f"Bearer {key}")
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin)


def test_a_page_that_is_not_among_the_allowed(keyed: LeadProcess) -> None:
    origin = "https://chat.example.evil"
    refused = httpx.options(f"{keyed.url}/v1/chat/completions", headers=_preflight(origin))
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers
    answer = get(keyed, "/v1/models", Origin=origin, Authorization="Bearer sk-one")
    assert_error(answer, 403)
    assert "access-control-allow-origin" not in answer.headers


# Keys


@pytest.mark.parametrize("key", ["sk-one", "sk-two", "sk-three", "sk-four", "sk-five"])
def test_keys_that_are_right(keyed: LeadProcess, key: str) -> None:
    for headers in ({"Authorization": f"Bearer {key}"}, {"Authorization": f"bearer  {key}"}, {"x-api-key": key}):
        assert ask(keyed, "/v1/completions", headers, prompt="a", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer sk-on"},
        {"Authorization": "Bearer sk-onex"},
        {"Authorization": "Bearer SK-ONE"},
        {"Authorization": "Bearer sk-one,sk-two"},
        {"Authorization": "Basic sk-one"},
        {"Authorization": "sk-one"},
        {"x-api-key": ""},
        {"x-api-key": "sk-none"},
        {"Authorization": "Bearer sk-none", "x-api-key": "sk-none"},
        {"api-key": "sk-one"},
    ],
    ids=str,
)
def test_keys_that_are_wrong(keyed: LeadProcess, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/metrics", "/nowhere"):
        answer = httpx.get(keyed.url + path, headers=headers, verify=False)
        assert_error(answer, 401, "key")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "sk-" not in answer.text
    for path in (*TEXTS, "/tokenize", "/detokenize"):
        assert_error(ask(keyed, path, headers, prompt="a", content="a", tokens=[1], messages=[_user("a")]), 401)


def test_health_needs_no_key(keyed: LeadProcess) -> None:
    assert get(keyed, "/health").status_code == 200
    assert get(keyed, "/health", Authorization="Bearer sk-none").status_code == 200


def test_a_key_from_the_environment(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT, env={"LLAMA_API_KEY": "sk-env"}) as lead:
        assert_error(get(lead, "/v1/models"), 401)
        assert get(lead, "/v1/models", x_api_key="sk-env").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "lead.example"])
def test_an_address_that_others_reach_needs_a_key(demo_pair: tuple[Path, Path], host: str) -> None:
    run = duo("lead", "-m", demo_pair[1], "--host", host, "--port", "0")
    assert_refused(run, f"--host {host}", "--api-key", status=2)


def test_an_address_that_others_reach(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT, "--host", "0.0.0.0", "--api-key", "sk-one") as lead:
        assert_error(get(lead, "/v1/models"), 401)
        # By whatever name.
        named = {"x_api_key": "sk-one", "Host": "box.example"}
        assert get(lead, "/v1/models", **named).status_code == 200


@pytest.mark.parametrize("keys", [["--api-key", ""], ["--api-key", "a,,b"], ["--api-key-file", os.devnull]])
def test_keys_that_are_empty(demo_pair: tuple[Path, Path], keys: list[str]) -> None:
    assert_refused(duo("lead", "-m", demo_pair[1], "--port", "0", *keys), "must not be empty", status=2)


def test_a_file_of_keys_that_is_missing(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    run = duo("lead", "-m", demo_pair[1], "--port", "0", "--api-key-file", tmp_path / "none")
    assert_refused(run, "--api-key-file", "No such file", status=2)


# Many


def test_two_hundred_at_once(lead: LeadProcess) -> None:
    """Each wants a text of its own; 64 may wait."""

    async def ask(client: httpx.AsyncClient, i: int, refused: asyncio.Event) -> httpx.Response:
        fields = {"prompt": "a", "grammar": f'root ::= "client {i}"', "max_tokens": 32}
        answer = await client.post(f"{lead.url}/v1/completions", json=fields)
        if answer.status_code == 503:
            refused.set()
        return answer

    async def ask_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
            refused = asyncio.Event()
            long = {"prompt": "a", "max_tokens": -1, "ignore_eos": True, "stream": True}
            async with client.stream("POST", f"{lead.url}/v1/completions", json=long) as first:
                await anext(first.aiter_bytes())
                asked = [asyncio.create_task(ask(client, i, refused)) for i in range(200)]
                await refused.wait()
            return await asyncio.gather(*asked)

    assert_works(lead)
    before = lead.metric("duo:generations_total")
    answers = asyncio.run(ask_all())
    texts = {i: answer for i, answer in enumerate(answers) if answer.status_code == 200}
    for i, answer in texts.items():
        assert answer.json()["choices"][0]["text"] == f"client {i}"
    for answer in answers:
        if answer.status_code != 200:
            assert_error(answer, 503, "waiting")
            assert int(answer.headers["Retry-After"]) > 0
    assert 64 <= len(texts) < 200
    # And the first.
    wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)
    assert lead.metric("duo:generations_total") - before == len(texts) + 1


def test_more_connections_than_files(demo_pair: tuple[Path, Path]) -> None:
    before = """
import resource
import duo.link.listener
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
duo.link.listener.HEADERS_S = 0.5
"""
    with LeadProcess(demo_pair[1], *CONTEXT, before=before) as lead:
        links = [connect(lead) for _ in range(200)]
        for link in links:
            assert read_to_the_end(link) == b""
            link.close()
        assert_works(lead)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
        assert_said_nothing_odd(lead)


def _memory(lead: LeadProcess, name: str) -> int:
    """Bytes, as Linux counts them."""
    status = Path(f"/proc/{lead.process.pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def _n_files(lead: LeadProcess) -> int:
    return len(list(Path(f"/proc/{lead.process.pid}/fd").iterdir()))


def _ask_ten(lead: LeadProcess, client: httpx.Client) -> None:
    """One of each kind."""
    short = {"prompt": "The cat", "max_tokens": 1}
    for path, fields, status in (
        ("/v1/completions", short, 200),
        ("/v1/completions", short | {"stream": True}, 200),
        ("/v1/completions", short | {"temperature": 1, "json_schema": {"type": "object"}}, 200),
        ("/v1/completions", short | {"grammar": "root ::= none"}, 400),
        ("/v1/chat/completions", {"messages": [_user("Hi")], "max_tokens": 1}, 200),
        ("/tokenize", {"content": "a b c"}, 200),
        ("/v1/nothing", {}, 404),
    ):
        assert client.post(lead.url + path, json=fields).status_code == status
    assert client.post(f"{lead.url}/v1/completions", content=b"{").status_code == 400
    assert client.get(f"{lead.url}/metrics").status_code == 200
    with closing(connect(lead)) as link:  # which leaves at the first word
        link.sendall(request("/v1/completions", json.dumps(short | {"max_tokens": 99, "stream": True}).encode()))
        assert link.recv(64)


@pytest.mark.skipif(not HAS_PROC, reason="there is no /proc")
def test_a_thousand_requests_leave_nothing_behind(lead: LeadProcess) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        for _ in range(20):
            _ask_ten(lead, client)
        memory, n_files = _memory(lead, "VmRSS"), _n_files(lead)
        for _ in range(80):
            _ask_ten(lead, client)
        assert _memory(lead, "VmRSS") - memory < 4e6
        wait_until(lambda: _n_files(lead) <= n_files)


# Beginning

_WAITS = """
import os, time
from duo.llama.model import Model
load = Model.__init__
def wait_and_load(self, config, progress):
    while not os.path.exists({path!r}) and progress(0.0):
        time.sleep(0.01)
    load(self, config, progress)
Model.__init__ = wait_and_load
"""


def _free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _loading_lead(target: Path, go: Path) -> LeadProcess:
    """A lead whose model is not loaded before the file `go` is there."""
    port = _free_port()
    lead = LeadProcess(target, *CONTEXT, "--port", str(port), before=_WAITS.format(path=str(go)), wait=False)
    lead.port = port
    return lead


def _listens(lead: LeadProcess) -> bool:
    try:
        connect(lead).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_lead_that_is_loading_says_so(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    go = tmp_path / "go"
    with _loading_lead(demo_pair[1], go) as lead:
        wait_until(lambda: _listens(lead))
        for answer in (get(lead, "/health"), get(lead, "/v1/models"), ask(lead, "/v1/completions", prompt="a")):
            assert_error(answer, 503, "loading")
            assert answer.headers["Retry-After"] == "1"
        assert get(lead, "/metrics").status_code == 200
        assert lead.lines == []
        go.touch()
        lead.wait_for("listening")
        wait_until(lambda: get(lead, "/health").status_code == 200)
        assert_works(lead)


def test_ctrl_c_while_it_is_loading(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    with _loading_lead(demo_pair[1], tmp_path / "never") as lead:
        wait_until(lambda: _listens(lead))
        lead.send(signal.SIGINT)
        assert lead.finish() == 130
        # The second where it has not come to the models yet.
        assert lead.lines in (["duo: interrupted while loading"], [])


def test_a_port_that_is_taken(lead: LeadProcess, demo_pair: tuple[Path, Path]) -> None:
    run = duo("lead", "-m", demo_pair[1], "--port", str(lead.port))
    assert_refused(run, f"cannot listen on 127.0.0.1:{lead.port}", status=2)


# Code for `before`: the thread that writes texts is late.
_LATE = """
import time
from duo.engine.worker import Worker
run = Worker._run
def late(self):
    time.sleep(1)
    run(self)
Worker._run = late
"""


def test_a_lead_that_says_it_listens_takes_requests(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT, before=_LATE) as lead:
        assert get(lead, "/health").status_code == 200
        assert_works(lead)


def test_a_lead_that_says_it_listens_heeds_signals(demo_pair: tuple[Path, Path]) -> None:
    before = """
import duo.cli.commands.lead, time
show = duo.cli.commands.lead._show
def late(*arguments):
    time.sleep(1)
    show(*arguments)
duo.cli.commands.lead._show = late
"""
    with LeadProcess(demo_pair[1], *CONTEXT, before=before) as lead:
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0


# Ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_in_the_middle_of_a_stream(demo_pair: tuple[Path, Path], number: signal.Signals) -> None:
    long: dict[str, Any] = {"prompt": "a", "max_tokens": -1, "ignore_eos": True}
    with LeadProcess(demo_pair[1], *CONTEXT, before=SLOW_TARGET) as lead, ThreadPoolExecutor() as others:
        with httpx.stream("POST", f"{lead.url}/v1/completions", json=long | {"stream": True}) as response:
            lines = response.iter_lines()
            assert "choices" in next(lines)
            waiting = others.submit(ask, lead, "/v1/completions", **long)
            wait_until(lambda: lead.metric("llamacpp:requests_deferred") == 1)
            lead.send(number)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        error = json.loads(rest[-2].removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == (503, "unavailable_error")
        assert "stopping" in error["message"]
        assert_error(waiting.result(), 503, "stopping")
        assert lead.finish() == 0
        assert_said_nothing_odd(lead)


def test_an_end_with_connections_that_stay(demo_pair: tuple[Path, Path]) -> None:
    """One that has had its answer, one that sends no more, and one that does not read."""
    more = ("--alias", "x" * 10_000)
    with LeadProcess(demo_pair[1], *CONTEXT, *more, before=SLOW_TARGET) as lead, ExitStack() as stack:
        links = [stack.enter_context(closing(connect(lead, window))) for window in (None, None, 4096)]
        fields = json.dumps({"prompt": "a", "max_tokens": 99, "stream": True}).encode()
        for link, data in zip(links, (HEALTH, HEALTH[:9], request("/v1/completions", fields)), strict=True):
            link.sendall(data)
        assert read_answer(links[0])[0] == 200
        wait_until(lambda: lead.metric("llamacpp:requests_processing") == 1)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0


# What it shows

_PROMPT, _TEXT = "quetzal zanzibar", "marmalade xylophone"
_GRAMMAR = f'root ::= "{_TEXT}"'


def _ask_everything(lead: LeadProcess) -> None:
    """Whatever could be a reason to show prompt or text."""
    assert lead.write(_PROMPT, 32, grammar=_GRAMMAR) == _TEXT
    assert lead.stream(_PROMPT, 32, grammar=_GRAMMAR).finish() == _TEXT
    messages = [_user(_PROMPT), {"role": "assistant", "content": _TEXT}, _user(_PROMPT)]
    ask(lead, "/v1/chat/completions", messages=messages, max_tokens=8)
    ask(lead, "/tokenize", content=_PROMPT)
    ask(lead, "/v1/completions", prompt=_PROMPT, model=_PROMPT)
    ask(lead, "/v1/completions", prompt=_PROMPT, stop=[_TEXT], temperature=_TEXT)
    ask(lead, "/v1/completions", prompt=_PROMPT * 500)
    ask(lead, "/v1/completions", prompt=_PROMPT, grammar=f'root ::= "{_TEXT}" none')
    ask(lead, "/v1/completions", prompt=_PROMPT, json_schema={"enum": [_TEXT], "type": _TEXT})
    get(lead, f"/{_PROMPT}".replace(" ", "%20"))


@pytest.mark.parametrize("more", [[], ["--print", "none"], ["--print", "auto", "-v"]], ids=str)
def test_prompts_and_texts_are_not_shown(demo_pair: tuple[Path, Path], more: list[str], tmp_path: Path) -> None:
    log = tmp_path / "duo.log"
    with LeadProcess(demo_pair[1], *CONTEXT, "--log-file", log, *more) as lead:
        _ask_everything(lead)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
        said = "\n".join(lead.lines) + log.read_text(encoding="utf-8")
        assert "tokens: " in said
        for word in (*_PROMPT.split(), *_TEXT.split()):
            assert word not in said
        assert lead.stdout == b""


def test_texts_are_shown_where_asked_for(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT, "--print", "accepted") as lead:
        _ask_everything(lead)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
        assert lead.stdout.decode().startswith(_TEXT * 2)
        assert _PROMPT.encode() not in lead.stdout
        assert not any(word in line for line in lead.lines for word in (*_PROMPT.split(), *_TEXT.split()))


def _shown(target: Path, draft: Path, choice: str) -> tuple[str, str, int]:
    """A text, how it is shown with marks, and how many guesses were rejected."""
    side = ("-md", draft, "-td", "1", "--schedule", "sync", "--exact")
    with LeadProcess(target, *side, *CONTEXT, "--print", choice, "--color", "always") as lead:
        text = lead.write("The capital of France is", 48)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
        (line,) = (line for line in lead.lines if "guesses" in line)
        found = re.search(r"accepted (\d+) of (\d+) guesses", line)
        assert found is not None
        return text, lead.stdout.decode(), int(found[2]) - int(found[1])


@pytest.mark.parametrize("choice", ["accepted", "all"])
def test_guesses_are_marked(demo_pair: tuple[Path, Path], choice: str) -> None:
    text, shown, n_rejected = _shown(*demo_pair, choice)
    assert n_rejected > 0
    struck = re.findall(r"\x1b\[9;2m.*?\x1b\[0m", shown)
    assert bool(struck) == (choice == "all")
    without = re.sub(r"\x1b\[9;2m.*?\x1b\[0m", "", shown)
    assert "\x1b[32m" in without
    assert re.sub(r"\x1b\[[\d;]*m", "", without) == text


def test_marks_are_shown_nowhere_with_print_none(demo_pair: tuple[Path, Path]) -> None:
    assert _shown(*demo_pair, "none")[1] == ""
