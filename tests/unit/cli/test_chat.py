"""`duo chat` in a pipe, and its client, against a scripted server on a real socket."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from duo.cli import chat_client
from duo.cli.chat_client import Answer, Server, ServerError, describe
from duo.cli.commands.chat import chat
from duo.cli.options.chat import ChatOptions
from duo.errors import UsageError
from duo.spec.types import Source
from tests.command import Argument, assert_refused
from tests.unit.cli.fake_openai import BROKEN, HELD, MODELS, FakeServer, Reply, end, event, piece, refuses, says
from tests.unit.cli.runner import duo

NO_KEYS = {"LLAMA_API_KEY": "", "OPENAI_API_KEY": ""}


def ask(server: FakeServer, answer: Answer | None = None) -> list[tuple[str, int, Source]]:
    """The pieces of an answer as they are shown."""
    shown: list[tuple[str, int, Source]] = []
    client = Server(server.url, key=None, model=None, settings={})
    client.answer([], answer or Answer(), lambda *piece: shown.append(piece))
    return shown


def test_a_pipe_gets_the_text_and_nothing_else() -> None:
    answer = says("Wait", ":\u2028 ", "日本", "\x1b[1mé", timings={"predicted_n": 3})
    with FakeServer(answer) as server:
        # No proxy is used for a server on this machine.
        env = NO_KEYS | {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        run = duo("chat", server.url, stdin="¿Qué?\nSí\n".encode(), env=env)
    assert (run.status, run.text, run.stderr) == (0, "Wait:\u2028 日本\x1b[1mé", "")
    assert server.questions == [
        {
            "model": "first",
            "messages": [{"role": "user", "content": "¿Qué?\nSí"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]
    assert "authorization" not in server.requests[-1].headers


def test_options_are_sent_as_given() -> None:
    options = ("-n", "5", "--temp", "0", "-s", "7", "--model", "other", "-sys", "Be brief.", "--api-key", "k3y")
    with FakeServer(says("ok")) as server:
        assert duo("chat", f"{server.url}/v1/", *options, stdin=b"hi").text == "ok"
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k3y"
    assert server.conversations == [[("system", "Be brief."), ("user", "hi")]]
    sent = {name: request.body[name] for name in ("model", "max_tokens", "temperature", "seed")}
    assert sent == {"model": "other", "max_tokens": 5, "temperature": 0, "seed": 7}


def test_sources_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\nfrom-file\nanother\n")
    cases: list[tuple[dict[str, str], tuple[Argument, ...], str]] = [
        ({"OPENAI_API_KEY": "openai"}, (), "openai"),
        ({"LLAMA_API_KEY": "llama"}, ("--api-key-file", file), "from-file"),
    ]
    for env, arguments, key in cases:
        with FakeServer(says("ok")) as server:
            assert duo("chat", server.url, *arguments, stdin=b"hi", env=NO_KEYS | env).text == "ok"
        # Also for the list of models, which the server may protect as well.
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {key}"}


@pytest.mark.parametrize(
    ("models", "name"),
    [
        (refuses(404, "no such thing"), "default"),
        (Reply(b'{"data": []}', kind="application/json"), "default"),
        (MODELS, "first"),
    ],
)
def test_the_name_of_the_model_where_none_is_given(models: Reply, name: str) -> None:
    with FakeServer(says("ok"), models=models) as server:
        ask(server)
    assert [body["model"] for body in server.questions] == [name]


def test_marks_in_a_pipe_only_where_asked_for() -> None:
    counts = (("abcdef", 2), ("gh", 9), ("ij", 0), ("kl", -1), ("mn", "x"))
    reply = Reply(b"".join(piece(text, duo={"accepted": n}) for text, n in counts) + end())
    with FakeServer(reply, reply) as server:
        assert duo("chat", server.url, stdin=b"hi").text == "abcdefghijklmn"
        marked = duo("chat", server.url, "--color", "always", stdin=b"hi")
    assert marked.stdout == b"\x1b[32mab\x1b[0mcdef\x1b[32mgh\x1b[0mijklmn"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refuses(400, "the prompt is too long"), "status 400 (the prompt is too long)"),
        (refuses(401, "bad key"), "(bad key): check --api-key"),
        (refuses(503, "Loading model", Retry_After="7"), "loading or busy (Loading model): try again in 7 s"),
        (refuses(503, "full", Retry_After="\t\x1b[2J"), "(full): try again later"),
        (refuses(500, "a\x1b[2J\nb\x9b2J"), "status 500 (a [2J b 2J)"),
        (Reply(b"[" * 100_000, 500, "text/plain"), "status 500 (Internal Server Error)"),
        (Reply(b'{"detail": "no"}', 404, "application/json"), "status 404 (no)"),
        (Reply(b"", 301, headers={"Location": "https://there/"}), "status 301 (https://there/)"),
        (Reply(b"<html>", kind="text/html; charset=utf-8"), "does not send an event stream"),
        (Reply(b"data: {oops\n\n"), "invalid JSON"),
        (Reply(b"data: " + b"[" * 100_000 + b"\n\n"), "invalid JSON"),
        (Reply(b"data: []\n\n"), "is incomplete"),
        (Reply(event({"error": {"message": "out of memory"}}), ending=HELD), "reports an error: out of memory"),
        (Reply(b'event: error\ndata: {"message": "out of luck"}\n\n', ending=HELD), "reports an error: out of luck"),
        (Reply(b"", ending=BROKEN), "is incomplete"),
        (Reply(piece("some")), "is incomplete"),
    ],
)
def test_server_errors_are_one_printable_line(reply: Reply, words: str) -> None:
    with FakeServer(reply) as server, pytest.raises(ServerError) as error:
        ask(server)
    assert words in str(error.value)
    assert str(error.value).isprintable()


def test_server_errors_end_a_pipe_with_status_1() -> None:
    with FakeServer(Reply(piece("so far"), ending=BROKEN)) as server:
        run = duo("chat", server.url, stdin=b"hi")
    assert (run.status, run.stdout, run.stderr.count("\n")) == (1, b"so far", 1)
    assert run.stderr.startswith(f"duo: error: the answer of {server.url} is incomplete")
    refused = "): start `duo lead` there, or use another URL"
    assert_refused(duo("chat", server.url, stdin=b"hi"), f"cannot connect to {server.url} (", refused)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1", "socksio"),
        ("HTTPS_PROXY", "gopher://127.0.0.1", "Unknown scheme"),
        ("SSL_CERT_FILE", "/missing.pem", "No such file"),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used(name: str, value: str, said: str) -> None:
    run = duo("chat", "https://chat.invalid", stdin=b"hi", env=NO_KEYS | {name: value})
    assert_refused(run, "the environment names", said, f"correct {'ALL_PROXY, HTTP_PROXY'}")


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "_SILENCE_S", 0.1)
    with FakeServer(Reply(b"", ending=HELD)) as server:
        assert_refused(duo("chat", server.url, stdin=b"hi"), "timed out: no data for 0.1 s")
        assert server.left.wait(60)


def test_standard_input_without_a_question() -> None:
    assert_refused(duo("chat", stdin=b""), "standard input is empty")
    assert_refused(duo("chat", stdin=b"\xff"), "standard input is not valid UTF-8")


@pytest.mark.parametrize(
    "options",
    [
        *({"url": url} for url in ("localhost:5555", "http://", "http://a:x", "http://a:99999", "http://a..b")),
        {"temp": -0.1},
        {"temp": math.nan},
        {"api_key": "ü"},
        {"api_key_file": Path("/no/such/file")},
    ],
    ids=str,
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        chat(ChatOptions(**options))


def test_events_in_every_form_of_the_standard() -> None:
    stream = (
        "\ufeff: a comment\r\n\r\nid: 1\nretry: 3\n\nevent: x\ndata\n\n"
        'data: {"choices": [{"delta":\rdata:{"content": "a\u2028é"}}]}\r\n\r\n'
    ).encode() + end()
    answer = Answer()
    with FakeServer(Reply(stream, kind="text/event-stream; charset=latin-1")) as server:
        assert ask(server, answer) == [("a\u2028é", 0, Source.DRAFT)]
    assert answer.text == "a\u2028é"


def test_the_rate_without_timings_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer()
    for now in (10.0, 10.5, 11.0):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        answer.take({"choices": [{"delta": {"content": "x"}}]}, lambda *_: None)
    answer.take({"choices": [], "usage": {"completion_tokens": 5}}, lambda *_: None)
    assert answer.figures == (5, 1.25, 0, 0)
    assert describe(answer) == "5 tokens, 4.0 tokens/s"
