"""`duo chat` in a pipe, and its client, against a scripted server on a real socket."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from duo.cli import chat_client
from duo.cli.chat_client import Server, ServerError
from duo.cli.commands import chat as chat_command
from duo.cli.commands.chat import Answer
from duo.speculation.types import Origin
from tests.command import Argument, assert_refused
from tests.unit.cli.fake_openai import BROKEN, HELD, MODELS, FakeServer, Reply, end, event, piece, refuses, says
from tests.unit.cli.runner import duo

NO_KEYS = {"LLAMA_API_KEY": "", "OPENAI_API_KEY": ""}
ALWAYS = {"model": "first", "stream": True, "stream_options": {"include_usage": True}}  # in each request
LEAD = Reply(b'{"data": [{"id": "first", "owned_by": "duo"}]}', kind="application/json")
SERVER = "http://127.0.0.1:1"  # there is none
THINKS = [event({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]}) for text in ("So", "…")]


def ask(server: FakeServer, answer: Answer | None = None) -> list[tuple[str, int, Origin | None]]:
    """The pieces of an answer as they are shown."""
    shown: list[tuple[str, int, Origin | None]] = []
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
    assert server.questions == [ALWAYS | {"messages": [{"role": "user", "content": "¿Qué?\nSí"}]}]
    assert "authorization" not in server.requests[-1].headers


def test_an_interrupt_closes_the_connection_wherever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(httpx.Response):
        """An interrupt right after the headers, before httpx has a response that it would close."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            raise KeyboardInterrupt

    with FakeServer(Reply(b"", ending=HELD)) as server:
        client = Server(server.url, key=None, model="m", settings={})
        monkeypatch.setattr("httpx._transports.default.Response", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.answer([], Answer(), lambda *_: None)
        assert server.left.wait(10)


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
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {key}"}


def test_marks_in_a_pipe_only_where_asked_for() -> None:
    sources: list[tuple[str, Any]] = [
        ("abcdef", [["draft", 2], ["target", 4]]),
        ("gh", [["draft", 9], ["lookup", 9]]),
        ("ij", []),
        ("klm", [["target", 1], ["lookup", 1]]),
        ("no", [["draft", -1], ["else", 1]]),
    ]
    reply = Reply(b"".join(piece(text, duo={"sources": runs}) for text, runs in sources) + end())
    with FakeServer(*[reply] * 4, models=LEAD) as server:
        assert duo("chat", server.url, stdin=b"hi").text == "abcdefghijklmno"
        marked = [duo("chat", server.url, "--color", "always", *more, stdin=b"hi") for more in ((), ("-m", "other"))]
        assert duo("chat", server.url, "-m", "other", stdin=b"hi").text == "abcdefghijklmno"
    colours = b"\x1b[32mab\x1b[0mcdef\x1b[32mgh\x1b[0mijk\x1b[36ml\x1b[0mmno"
    assert [run.stdout for run in marked] == [colours] * 2
    assert [body.get("duo") for body in server.questions] == [None, True, True, None]
    assert [body["model"] for body in server.questions] == ["first", "first", "other", "other"]
    assert len(server.requests) == 4 + 3, "the models are asked for only where they matter"


def test_reasoning_is_no_part_of_an_answer() -> None:
    answer = Answer()
    with FakeServer(*[Reply(b"".join(THINKS) + piece("Yes.") + end())] * 2) as server:
        assert ask(server, answer) == [("So", 0, None), ("…", 0, None), ("Yes.", 0, Origin.DRAFT)]
        assert duo("chat", server.url, "--color", "always", stdin=b"hi").text == "Yes."
    assert answer.text == "Yes."


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refuses(401, "bad key"), "(bad key): check --api-key"),
        (refuses(503, "Loading model", Retry_After="7"), "(Loading model): it is loading or busy, try again later"),
        (refuses(500, "a\x1b[2J\nb\x9b2J"), "status 500 (a [2J b 2J)"),
        (Reply(b'{"detail": "no"}', 404, "application/json"), "status 404 (no)"),
        (Reply(b"", 301, headers={"Location": "https://there/"}), "status 301 (https://there/)"),
        (Reply(b"<html>", kind="text/html; charset=utf-8"), "is incomplete: Expected response header Content-Type"),
        (Reply(b"data: {oops\n\n"), "invalid JSON"),
        (Reply(b"data: " + b"[" * 100_000 + b"\n\n"), "invalid JSON"),
        (Reply(piece("a", duo={"sources": [7, None]})), "invalid JSON"),
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
    monkeypatch.setattr(chat_client, "_SILENCE_S", 1.0)
    with FakeServer(Reply(b"", ending=HELD)) as server:
        with pytest.raises(ServerError, match="is incomplete: timed out"):
            ask(server)
        assert server.left.wait(60)


def test_standard_input_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_command, "_LEAD", SERVER)  # a lead may run on this machine
    assert_refused(duo("chat", stdin=b""), "standard input is empty")
    assert_refused(duo("chat", stdin=b"\xff"), "standard input is not valid UTF-8")


def test_a_server_gets_the_options_that_are_given_and_not_those_of_the_environment() -> None:
    env = NO_KEYS | {"LLAMA_ARG_MODEL": "/a/file.gguf", "LLAMA_ARG_TEMPERATURE": "0.7", "LLAMA_ARG_CTX_SIZE": "64"}
    options = ["--top-k", "5", "--min-p", "0.1", "--repeat-last-n", "8", "-r", "one", "-r", "two", "-m", "other"]
    with FakeServer(*[says("ok")] * 2) as server:
        for given in ([], options):
            assert duo("chat", server.url, "-p", "a\\nb", *given, env=env).text == "ok"
    expected = {"model": "other", "top_k": 5, "min_p": 0.1, "repeat_last_n": 8, "stop": ["one", "two"]}
    always = ALWAYS | {"messages": [{"role": "user", "content": "a\nb"}]}
    assert server.questions == [always, always | expected]


def test_a_lead_on_this_machine_is_used_without_a_url_and_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(says("ok")) as server:
        monkeypatch.setattr(chat_command, "_LEAD", server.url)
        run = duo("chat", stdin=b"hi", env=NO_KEYS)
    assert (run.text, run.stderr) == ("ok", f"duo: no model given (-m, -hf): using the server at {server.url}\n")


@pytest.mark.parametrize(
    ("models", "is_there"),
    [
        (MODELS, True),
        (refuses(503, "Loading model"), True),
        (refuses(404, "not here"), False),
        (Reply(b"", ending=HELD), False),
    ],
)
def test_what_counts_as_a_lead(models: Reply, is_there: bool) -> None:
    with FakeServer(models=models) as server:
        assert Server(server.url, key=None, model=None, settings={}).is_there() is is_there
    assert not Server(server.url, key=None, model=None, settings={}).is_there()


@pytest.mark.parametrize(
    ("reply", "remark"),
    [
        (says(), "the answer is empty: the model ended the text at once"),
        (Reply(THINKS[0] + end()), "the answer is empty: the model ended the text after its reasoning"),
        (Reply(end("content_filter")), "the answer is empty: content_filter"),
        (Reply(piece("a") + end("length")), "the server's limit of tokens or of the context is reached\n"),
        (Reply(piece("a") + end("content_filter")), ""),
    ],
)
def test_an_answer_that_is_empty_or_incomplete_says_why(reply: Reply, remark: str) -> None:
    with FakeServer(reply) as server:
        run = duo("chat", server.url, stdin=b"hi", env=NO_KEYS)
    assert run.status == 0
    assert run.stderr.startswith(f"duo: {remark}") if remark else not run.stderr
