"""`duo chat` on a terminal, with a server on a real socket."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import Argument
from tests.process.cli.fake_openai import BROKEN, HELD, FakeServer, Reply, end, piece, refuses, says
from tests.process.cli.terminal import CTRL_C, Terminal

PROMPT = b"\x1b[?2004h"  # the input line is there: from now on a paste is told from keys
ENTER = b"\r"
UP = b"\x1b[A"
CTRL_D = b"\x04"


class Talk(Terminal):
    """`duo chat` on a terminal."""

    def __init__(self, url: str, *arguments: Argument, before: str = "", env: dict[str, str] | None = None) -> None:
        # A terminal that is asked for its cursor's position and says nothing would be complained about.
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
        """Send `text` once the input line is there, wait for the next. Returns what was shown in between."""
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
        assert b":what is no command" in talk.say(b":what now?")
        assert b":new takes no text" in talk.say(b":new idea")
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


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
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
        assert b"ok\n" in talk.say(b"c")
        talk.leave()
    so_far = [("user", "a"), ("assistant", "so far")]
    assert server.conversations == [so_far[:1], [*so_far, ("user", "b")], [*so_far, ("user", "c")]]


def test_ctrl_c_at_the_input_line() -> None:
    with FakeServer(says("ok")) as server, Talk(server.url) as talk:
        talk.wait_for(PROMPT)
        talk.type(b"draft" + CTRL_C)
        assert b"ok\n" in talk.say(b"message")
        talk.type(CTRL_C)
        assert b"Ctrl-D or :quit leaves" in talk.wait_for(PROMPT)
        talk.type(CTRL_D)
        assert talk.finish() == 0
    assert server.conversations == [[("user", "message")]]


def test_the_program_goes_on_after_errors() -> None:
    replies = (refuses(503, "Loading model"), Reply(piece("half"), ending=BROKEN), says(), says("ok"))
    with FakeServer(*replies) as server, Talk(server.url) as talk:
        talk.wait_for(PROMPT)
        assert b"duo: error: the server is loading or busy (Loading model)" in talk.say(b"a")
        shown = talk.say(b"b")
        assert b"half\n" in shown
        assert b"duo: error: the answer of" in shown
        assert b"the answer is empty" in talk.say(b"c")
        assert b"ok\n" in talk.say(b"d")
        talk.leave()
    kept = [("user", "b"), ("assistant", "half"), ("user", "c"), ("assistant", ""), ("user", "d")]
    assert server.conversations == [[("user", "a")], kept[:1], kept[:3], kept]
    # At the beginning and after each failure: by then it may be another server.
    assert [request.method for request in server.requests] == ["GET", "POST", "GET", "POST", "GET", "POST", "POST"]


def test_a_server_that_comes_later() -> None:
    with FakeServer() as server:
        url = server.url
    with Talk(url) as talk:
        assert b"cannot be reached (" in talk.wait_for(PROMPT)
        with FakeServer(says("ok"), port=int(url.rpartition(":")[2])):
            assert b"ok\n" in talk.say(b"hi")
        assert b"cannot be reached (" in talk.say(b"still there?")
        talk.leave()


def test_a_server_cannot_drive_the_terminal() -> None:
    models = Reply(json.dumps({"data": [{"id": "na\x1b[2Jme"}]}).encode(), kind="application/json")
    half_a_character = b'data: {"choices": [{"delta": {"content": "\\ud800"}}]}\n\n'
    replies = (
        Reply(piece("a\x1b]0;title\x07\x9b2Jb\tc\r\nd", duo={"accepted": 3}) + half_a_character + end()),
        refuses(400, "no\x1b[2Jway"),
    )
    with FakeServer(*replies, models=models) as server, Talk(server.url) as talk:
        assert b"na[2Jme at" in talk.wait_for(PROMPT)
        assert b"\x1b[32ma]\x1b[0m0;title2Jb\tc\nd?\n" in talk.say(b"hi")
        assert b"no [2Jway" in talk.say(b"hi")
        talk.leave()


def test_figures() -> None:
    timings = {"predicted_n": 128, "predicted_per_second": 21.25, "draft_n": 80, "draft_n_accepted": 61}
    replies = (says("a", timings=timings), says("b", usage={"completion_tokens": 1}), says("c"))
    with FakeServer(*replies) as server, Talk(server.url) as talk:
        assert b"nothing is known" in talk.wait_for(PROMPT) + talk.say(b":stats")
        assert b"\x1b[2m128 tokens, 21.2 tokens/s, 61 of 80 guesses accepted" in talk.say(b"hi")
        assert b"\x1b[2m1 token\x1b" in talk.say(b"hi")
        shown = talk.say(b":stats")
        assert b"last answer: 1 token\x1b" in shown or b"last answer: 1 token\n" in shown
        assert b"all answers: 129 tokens, " in shown
        assert b"token" not in talk.say(b"hi")
        talk.leave()


def test_without_colours() -> None:
    replies = (Reply(piece("abc", duo={"accepted": 3}) + end(usage={"completion_tokens": 1})),) * 2
    for arguments, env in ((("--color", "never"), {}), ((), {"NO_COLOR": "1"})):
        with FakeServer(*replies) as server, Talk(server.url, *arguments, env=env) as talk:
            talk.wait_for(PROMPT)
            assert b"abc\n1 token\n" in talk.say(b"hi")
            talk.leave()


def test_what_was_sent_comes_back(tmp_path: Path) -> None:
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


def test_it_need_not_be_kept() -> None:
    with FakeServer(says("ok")) as server, Talk(server.url, env={"DUO_CONFIG": "/dev/null/config"}) as talk:
        talk.wait_for(PROMPT)
        assert b"ok\n" in talk.say(b"hi")
        talk.leave()


def test_a_text_that_goes_elsewhere_is_plain(tmp_path: Path) -> None:
    file = tmp_path / "text"
    elsewhere = f"import os; os.dup2(os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT), 1)\n"
    reply = Reply(piece("a\x1b[1mb", duo={"accepted": 1}) + end())
    with FakeServer(reply, says("c")) as server, Talk(server.url, before=elsewhere) as talk:
        talk.wait_for(PROMPT)
        talk.say(b"hi")
        talk.say(b"hi")
        talk.leave()
    assert file.read_bytes() == b"a\x1b[1mb\nc\n"
