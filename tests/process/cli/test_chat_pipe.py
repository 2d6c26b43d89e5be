"""`duo chat` in a pipe, and its client: on real sockets."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from duo.cli.chat_client import Answer, Server, ServerError, describe
from duo.cli.commands.chat import chat
from duo.cli.options.chat import ChatOptions
from duo.errors import UsageError
from tests.command import Argument, assert_refused, command, duo, environment
from tests.process.cli.fake_openai import BROKEN, HELD, MODELS, FakeServer, Reply, end, event, piece, refuses, says

NO_KEYS = {"LLAMA_API_KEY": "", "OPENAI_API_KEY": ""}


def test_a_pipe_gets_the_text_and_nothing_else() -> None:
    answer = says("Wait", ":\u2028 ", "日本", "\x1b[1mé", timings={"predicted_n": 3})
    with FakeServer(answer) as server:
        # No server on this machine is asked for through a proxy.
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
        run = duo("chat", f"{server.url}/v1/", *options, stdin=b"hi")
    assert run.text == "ok"
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k3y"
    assert server.conversations == [[("system", "Be brief."), ("user", "hi")]]
    sent = {name: request.body[name] for name in ("model", "max_tokens", "temperature", "seed")}
    assert sent == {"model": "other", "max_tokens": 5, "temperature": 0, "seed": 7}


def test_the_key_can_come_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\nfrom-file\nanother\n")
    cases: list[tuple[dict[str, str], tuple[Argument, ...], str]] = [
        ({"OPENAI_API_KEY": "openai"}, (), "openai"),
        ({"LLAMA_API_KEY": "llama"}, ("--api-key-file", file), "from-file"),
    ]
    for env, arguments, key in cases:
        with FakeServer(says("ok")) as server:
            assert duo("chat", server.url, *arguments, stdin=b"hi", env=NO_KEYS | env).text == "ok"
        # Whoever guards the answers may guard the list of models as well.
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {key}"}


@pytest.mark.parametrize(
    ("models", "name"),
    [
        (refuses(404, "no such thing"), "default"),
        (Reply(b'{"data": []}', kind="application/json"), "default"),
        (MODELS, "first"),
    ],
)
def test_a_server_that_names_no_models_is_asked_all_the_same(models: Reply, name: str) -> None:
    with FakeServer(says("ok"), models=models) as server:
        _client(server).answer([], Answer(), lambda *_: None)
    assert [body["model"] for body in server.questions] == [name]


def test_marks_in_a_pipe_if_asked_for() -> None:
    reply = Reply(
        piece("abcdef", duo={"accepted": 2})
        + piece("gh", duo={"accepted": 9})
        + piece("ij", duo={"accepted": 0})
        + piece("kl", duo={"accepted": -1})
        + piece("mn", duo={"accepted": "x"})
        + end()
    )
    with FakeServer(reply, reply) as server:
        assert duo("chat", server.url, stdin=b"hi").text == "abcdefghijklmn"
        marked = duo("chat", server.url, "--color", "always", stdin=b"hi")
    assert marked.stdout == b"\x1b[32mab\x1b[0mcdef\x1b[32mgh\x1b[0mijklmn"


def _client(server: FakeServer) -> Server:
    return Server(server.url, key=None, model=None, settings={})


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (refuses(400, "the prompt is too long"), "status 400 (the prompt is too long)"),
        (refuses(401, "bad key"), "(bad key): is --api-key the right one?"),
        (refuses(503, "Loading model", Retry_After="7"), "loading or busy (Loading model): ask again in 7 s"),
        (refuses(503, "full", Retry_After="\t\x1b[2J"), "(full): ask again later"),
        (refuses(500, "a\x1b[2J\nb\x9b2J"), "status 500 (a [2J b 2J)"),
        (Reply(b"[" * 100_000, 500, "text/plain"), "status 500 (Internal Server Error)"),
        (Reply(b'{"detail": "no"}', 404, "application/json"), "status 404 (no)"),
        (Reply(b"", 301, headers={"Location": "https://there/"}), "status 301 (https://there/)"),
        (Reply(b"<html>", kind="text/html; charset=utf-8"), "does not answer with a stream of events"),
        (Reply(b"data: {oops\n\n"), "no JSON"),
        (Reply(b"data: " + b"[" * 100_000 + b"\n\n"), "no JSON"),
        (Reply(b"data: []\n\n"), "broke off"),
        (Reply(event({"error": {"message": "out of memory"}}), ending=HELD), "gave up: out of memory"),
        (Reply(b'event: error\ndata: {"message": "out of luck"}\n\n', ending=HELD), "gave up: out of luck"),
        (Reply(b"", ending=BROKEN), "broke off"),
        (Reply(piece("some")), "broke off"),
    ],
)
def test_what_a_server_may_do_wrong(reply: Reply, words: str) -> None:
    with FakeServer(reply) as server, pytest.raises(ServerError) as error:
        _client(server).answer([], Answer(), lambda *_: None)
    assert words in str(error.value)
    assert str(error.value).isprintable()


def test_in_a_pipe_that_is_one_line_and_a_status() -> None:
    with FakeServer(refuses(400, "too long")) as server:
        assert_refused(duo("chat", server.url, stdin=b"hi"), "too long")
    with FakeServer(Reply(piece("so far"), ending=BROKEN)) as server:
        run = duo("chat", server.url, stdin=b"hi")
    assert (run.status, run.stdout) == (1, b"so far")
    assert run.stderr.startswith(f"duo: error: the answer of {server.url} broke off")
    assert run.stderr.count("\n") == 1
    run = duo("chat", server.url, stdin=b"hi")
    assert_refused(run, f"{server.url} cannot be reached (")
    assert_refused(run, "): start `duo lead` there, or name another server")


def test_a_server_that_says_nothing_is_given_up() -> None:
    with FakeServer(Reply(b"", ending=HELD)) as server:
        run = duo("chat", server.url, stdin=b"hi", before="from duo.cli import chat_client as c; c._SILENCE_S = 0.3")
        assert_refused(run, "has said nothing for 0.3 s")
        assert server.left.wait(60)


def test_nothing_to_ask() -> None:
    assert_refused(duo("chat", stdin=b""), "standard input is empty")
    assert_refused(duo("chat", stdin=b"\xff"), "standard input is not valid UTF-8")


@pytest.mark.parametrize(
    "options",
    [
        *({"url": f"{url}"} for url in ("localhost:5555", "http://", "http://a:x", "http://a:99999", "http://a..b")),
        {"temp": -0.1},
        {"temp": math.nan},
        {"api_key": "ü"},
        {"api_key_file": Path("/no/such/file")},
    ],
    ids=str,
)
def test_options_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        chat(ChatOptions(**options))


def test_such_options_have_a_status_of_their_own() -> None:
    assert_refused(duo("chat", "ftp://a", stdin=b"hi"), "'ftp://a' is no URL", status=2)
    assert_refused(duo("chat", "-n", "-2", stdin=b"hi"), "--predict", status=2)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_has_had_enough(unbuffered: str) -> None:
    with FakeServer(Reply(piece("x" * 1_000_000), ending=HELD)) as server:
        process = subprocess.Popen(
            command("chat", server.url), env=environment({"PYTHONUNBUFFERED": unbuffered}), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with process:
            process.stdin.write(b"hi")
            process.stdin.close()
            assert process.stdout.read(1) == b"x"
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0
        assert server.left.wait(60)


def test_it_does_not_wait_for_llama_cpp() -> None:
    check = "import atexit, sys; atexit.register(lambda: print('llama_cpp' in sys.modules, file=sys.stderr))"
    with FakeServer(says("ok")) as server:
        assert duo("chat", server.url, stdin=b"hi", before=check).stderr == "False\n"


def test_events_in_whatever_form() -> None:
    stream = (
        "\ufeff: a comment\r\n\r\nid: 1\nretry: 3\n\nevent: x\ndata\n\n"
        'data: {"choices": [{"delta":\rdata:{"content": "a\u2028é"}}]}\r\n\r\n'
    ).encode() + end()
    answer, shown = Answer(), list[tuple[str, int]]()
    with FakeServer(Reply(stream, kind="text/event-stream; charset=latin-1")) as server:
        _client(server).answer([], answer, lambda *piece: shown.append(piece))
    assert (answer.text, shown) == ("a\u2028é", [("a\u2028é", 0)])


def test_the_rate_without_timings_is_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer()
    for now in (10.0, 10.5, 11.0):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        answer.take({"choices": [{"delta": {"content": "x"}}]}, lambda *_: None)
    answer.take({"choices": [], "usage": {"completion_tokens": 5}}, lambda *_: None)
    assert answer.figures == (5, 1.25, 0, 0)
    assert describe(answer) == "5 tokens, 4.0 tokens/s"
