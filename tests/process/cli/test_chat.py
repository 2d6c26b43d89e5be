"""`duo chat` on a terminal, with a scripted server on a real socket."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import Argument
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.unit.cli.fake_openai import BROKEN, HELD, FakeServer, Reply, end, piece, refuses, says

PROMPT = b"\x1b[?2004h"  # the input line is ready: bracketed paste is on
ENTER = b"\r"
UP = b"\x1b[A"
CTRL_D = b"\x04"


class Talk(Terminal):
    """`duo chat` on a terminal."""

    def __init__(self, url: str, *arguments: Argument, before: str = "", env: dict[str, str] | None = None) -> None:
        # prompt_toolkit warns about a terminal that does not report its cursor's position.
        env = {"PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})}
        super().__init__("chat", url, *arguments, before=before, stderr_too=True, env=env)

    def __enter__(self) -> Talk:
        return self

    def wait_for(self, text: bytes) -> bytes:
        """Read until `text` is shown, counted from where the last call ended. Returns what was shown before it."""
        self.read_until(text)
        before, _, self.shown = self.shown.partition(text)
        return before

    def say(self, text: bytes) -> bytes:
        """Send `text` and wait for the next input line. Returns what was shown in between."""
        self.type(text + ENTER)
        return self.wait_for(PROMPT)

    def leave(self) -> None:
        self.type(b":quit" + ENTER)
        assert self.finish() == 0
        assert b"Traceback" not in self.shown


def test_a_conversation_is_sent_in_full() -> None:
    with FakeServer(*(says(f"answer {i}") for i in range(6))) as server, Talk(server.url, "-sys", "One.") as talk:
        assert b"first at " + server.url.encode() in talk.wait_for(PROMPT)
        assert b"answer 0\n" in talk.say(b"a\nb" + b"\x1b\r" + b"c")
        assert b"answer 1\n" in talk.say(b"\x1b[200~d\r\ne\x1b[201~")
        talk.say(b":new")
        assert b"answer 2\n" in talk.say(b"::new")
        assert b"One." in talk.say(b":system")
        talk.say(b":system Two\nlines.")
        assert b"answer 3\n" in talk.say(b"f")
        assert b":what" in talk.say(b":what now?")
        assert b":new takes no " in talk.say(b":new idea")
        talk.say(b"   ")
        assert b"answer 4\n" in talk.say(b":: g")
        talk.leave()
    one, two = ("system", "One."), ("system", "Two\nlines.")
    first = [one, ("user", "a\nb\nc")]
    assert server.conversations == [
        first,
        [*first, ("assistant", "answer 0"), ("user", "d\ne")],
        [one, ("user", ":new")],
        [two, ("user", "f")],
        [two, ("user", "f"), ("assistant", "answer 3"), ("user", ": g")],
    ]


def test_ctrl_c_stops_an_answer_or_clears_the_line_and_ctrl_d_exits() -> None:
    replies = (Reply(piece("so far"), ending=HELD), Reply(b"", ending=HELD), says("ok"))
    with FakeServer(*replies) as server, Talk(server.url) as talk:
        talk.wait_for(PROMPT)
        talk.type(b"a" + ENTER)
        talk.wait_for(b"so far")
        talk.type(CTRL_C)
        assert b"stopped" in talk.wait_for(PROMPT)
        assert server.left.wait(60)
        server.left.clear()
        talk.type(b"b" + ENTER)
        server.wait_for_question(2)
        talk.type(CTRL_C * 2)
        assert b"stopped" in talk.wait_for(PROMPT)
        assert server.left.wait(60)
        talk.type(b"draft" + CTRL_C)
        assert b"ok\n" in talk.say(b"c")
        talk.type(CTRL_C)
        assert b"Ctrl-D or :quit" in talk.wait_for(PROMPT)
        talk.type(CTRL_D)
        assert talk.finish() == 0
    so_far = [("user", "a"), ("assistant", "so far")]
    assert server.conversations == [so_far[:1], [*so_far, ("user", "b")], [*so_far, ("user", "c")]]


def test_a_chat_survives_errors_and_restarts_of_the_server() -> None:
    with FakeServer() as server:
        url = server.url
    replies = (refuses(503, "Loading model"), Reply(piece("half"), ending=BROKEN), says(), says("ok"))
    with Talk(url) as talk:
        assert b"cannot connect to " in talk.wait_for(PROMPT)
        with FakeServer(*replies, port=int(url.rpartition(":")[2])) as server:
            assert b"duo: error: the server is loading or busy (Loading model)" in talk.say(b"a")
            shown = talk.say(b"b")
            assert b"half\n" in shown
            assert b"duo: error: the answer of" in shown
            assert b"the answer is empty" in talk.say(b"c")
            assert b"ok\n" in talk.say(b"d")
        assert b"cannot connect to " in talk.say(b"still there?")
        talk.leave()
    kept = [("user", "b"), ("assistant", "half"), ("user", "c"), ("assistant", ""), ("user", "d")]
    assert server.conversations == [[("user", "a")], kept[:1], kept[:3], kept]
    # The model is looked up at the start and after each failure: by then it may be another server.
    assert [request.method for request in server.requests] == ["GET", "POST", "GET", "POST", "GET", "POST", "POST"]


def test_control_sequences_of_a_server_and_figures() -> None:
    models = Reply(json.dumps({"data": [{"id": "na\x1b[2Jme"}]}).encode(), kind="application/json")
    half_a_character = b'data: {"choices": [{"delta": {"content": "\\ud800"}}]}\n\n'
    timings = {"predicted_n": 128, "predicted_per_second": 21.25, "draft_n": 80, "draft_n_accepted": 61}
    replies = (
        Reply(piece("a\x1b]0;title\x07\x9b2Jb\tc\r\nd", duo={"accepted": 3}) + half_a_character + end()),
        refuses(400, "no\x1b[2Jway"),
        says("a", timings=timings),
        says("b", usage={"completion_tokens": 1}),
        says("c"),
    )
    with FakeServer(*replies, models=models) as server, Talk(server.url) as talk:
        assert b"na[2Jme at" in talk.wait_for(PROMPT)
        assert b"\x1b[32ma]\x1b[0m0;title2Jb\tc\nd?\n" in talk.say(b"hi")
        assert b"no [2Jway" in talk.say(b"hi")
        shown = talk.say(b"hi")
        assert b"\x1b[2m128 tokens, 21.2 tokens/s, 61 of 80 " in shown
        assert b"\x1b[2m1 token\x1b" in talk.say(b"hi")
        shown = talk.say(b":stats")
        assert b"last answer: 1 token" in shown
        assert b"all answers: 129 tokens, " in shown
        assert b"token" not in talk.say(b"hi")
        talk.leave()


def test_the_history_is_kept_in_a_private_file(tmp_path: Path) -> None:
    env = {"DUO_CONFIG": str(tmp_path / "new" / "config")}
    for keys in (b"one\ntwo", UP + UP):
        with FakeServer(says("ok")) as server, Talk(server.url, env=env) as talk:
            talk.wait_for(PROMPT)
            talk.say(keys)
            talk.leave()
        assert server.conversations == [[("user", "one\ntwo")]]
    (file,) = (tmp_path / "new" / "config").iterdir()
    assert file.name == "chat_history"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_redirected_text_is_plain_and_a_history_that_cannot_be_kept_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "text"
    redirect = f"import os; os.dup2(os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT), 1)\n"
    replies = (Reply(piece("a\x1b[1mb", duo={"accepted": 1}) + end()), says("c"))
    env = {"DUO_CONFIG": "/dev/null/config"}
    with FakeServer(*replies) as server, Talk(server.url, before=redirect, env=env) as talk:
        talk.wait_for(PROMPT)
        talk.say(b"hi")
        talk.say(b"hi")
        talk.leave()
    assert file.read_bytes() == b"a\x1b[1mb\nc\n"
