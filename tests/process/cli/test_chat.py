"""`duo chat` on a terminal, with a scripted server on a real socket, and with models in its own process."""

from __future__ import annotations

import ast
import fcntl
import json
import signal
import struct
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from duo.models.memory_file import summary
from tests.command import ONE_EACH, SLOW_TARGET, Argument, models
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.serving import wait_until
from tests.unit.cli.fake_openai import BROKEN, HELD, FakeServer, Reply, end, piece, refuses, says

PROMPT = b"\x1b[?2004h"  # the input line is ready: bracketed paste is on
NO_PROMPT = b"\x1b[?2004l"  # it has ended
ENTER = b"\r"
UP = b"\x1b[A"
CTRL_D = b"\x04"
# A terminal as a shell leaves it: what is typed is shown, and Ctrl-C discards it.
AS_A_SHELL = """import termios
modes = termios.tcgetattr(0)
modes[3] = (modes[3] | termios.ECHO) & ~termios.NOFLSH
termios.tcsetattr(0, termios.TCSANOW, modes)
"""


class Talk(Terminal):
    """`duo chat` on a terminal."""

    def __init__(self, *arguments: Argument, before: str = "", env: dict[str, str] | None = None) -> None:
        # prompt_toolkit warns about a terminal that does not report its cursor's position.
        super().__init__("chat", *arguments, before=before, env={"PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})})

    def __enter__(self) -> Talk:
        self.greeting = self.read_until(PROMPT)
        return self

    def ask(self, text: bytes, until: bytes = PROMPT) -> bytes:
        """Send `text` and wait, for the next input line. Returns what was shown in between."""
        self.type(text + ENTER)
        return self.read_until(until)

    def converse(self, *turns: tuple[bytes, bytes]) -> None:
        """Send texts, after each of which there must be certain words; then leave the chat."""
        for text, words in turns:
            assert words in self.ask(text)
        self.leave()

    @property
    def modes(self) -> list[Any]:
        """The terminal's attributes."""
        return termios.tcgetattr(self.master)

    def leave(self) -> None:
        self.type(b"/exit" + ENTER)
        assert self.finish() == 0
        assert b"Traceback" not in self.shown


def test_a_conversation_is_sent_in_full() -> None:
    with FakeServer(*(says(f"answer {i}") for i in range(5))) as server, Talk(server.url, "-sys", "One.") as talk:
        assert b"first at " + server.url.encode() in talk.greeting
        talk.converse(
            (b"a\nb" + b"\x1b\r" + b"c", b"answer 0\n"),
            (b"\x1b[200~d\r\ne\x1b[201~", b"answer 1\n"),
            (b"/clear", b"new conversation"),
            (b"//new", b"answer 2\n"),
            (b"/system", b"One."),
            (b"/system Two\nlines.", b"new conversation"),
            (b"f", b"answer 3\n"),
            (b"/what now?", b"/what now? is not a command (/help lists them)"),
            (b"/clear idea", b"/clear idea is not a command"),
            (b"/help", b"/system TEXT  set the system prompt and begin a new conversation"),
            (b"   ", b""),
            (b"// g", b"answer 4\n"),
        )
    one, two = ("system", "One."), ("system", "Two\nlines.")
    first = [one, ("user", "a\nb\nc")]
    assert server.conversations == [
        first,
        [*first, ("assistant", "answer 0"), ("user", "d\ne")],
        [one, ("user", "/new")],
        [two, ("user", "f")],
        [two, ("user", "f"), ("assistant", "answer 3"), ("user", "/ g")],
    ]


def test_ctrl_c_stops_an_answer_or_clears_the_line_and_ctrl_d_exits() -> None:
    replies = (Reply(piece("so far"), ending=HELD), Reply(b"", ending=HELD), says("ok"))
    with FakeServer(*replies) as server, Talk(server.url) as talk:
        for i, keys in enumerate((CTRL_C, CTRL_C * 2)):
            talk.type(b"ab"[i : i + 1] + ENTER)
            server.wait_for_question(i + 1)
            if i == 0:
                talk.read_until(b"so far")
            talk.type(keys)
            assert b"stopped" in talk.read_until(PROMPT)
            assert server.left.wait(60)
            server.left.clear()
        talk.type(b"draft" + CTRL_C)
        assert b"ok\n" in talk.ask(b"c")
        talk.type(CTRL_C)
        assert b"Ctrl-D or /exit" in talk.read_until(PROMPT)
        talk.type(CTRL_D)
        assert talk.finish() == 0
    so_far = [("user", "a"), ("assistant", "so far")]
    assert server.conversations == [so_far[:1], [*so_far, ("user", "b")], [*so_far, ("user", "c")]]


def test_a_chat_survives_errors_and_restarts_of_the_server() -> None:
    with FakeServer() as server:
        url = server.url
    replies = (refuses(503, "Loading model"), Reply(piece("half"), ending=BROKEN), says(), says("ok"))
    with Talk(url) as talk:
        assert b"cannot connect to " in talk.greeting
        with FakeServer(*replies, port=int(url.rpartition(":")[2])) as server:
            assert b"(Loading model): it is loading or busy, try again later" in talk.ask(b"a")
            assert b"half\nduo: error: the answer of" in talk.ask(b"b")
            assert b"the answer is empty: the model ended the text at once" in talk.ask(b"c")
            assert b"ok\n" in talk.ask(b"d")
        talk.converse((b"still there?", b"cannot connect to "))
    kept = [("user", "b"), ("assistant", "half"), ("user", "c"), ("assistant", ""), ("user", "d")]
    assert server.conversations == [[("user", "a")], kept[:1], kept[:3], kept]
    # The model is looked up at the start and after each failure: by then it may be another server.
    assert [request.method for request in server.requests] == ["GET", "POST", "GET", "POST", "GET", "POST", "POST"]


def test_control_sequences_of_a_server_and_figures() -> None:
    listed = Reply(json.dumps({"data": [{"id": "na\x1b[2Jme"}]}).encode(), kind="application/json")
    timings = {"predicted_n": 128, "predicted_per_second": 21.25, "draft_n": 80, "draft_n_accepted": 61}
    replies = (
        Reply(piece("a\x1b]0;title\x07\x9b2Jb\tc\r\nd", duo={"sources": [["draft", 3]]}) + end()),
        says("a", timings=timings),
        says("b", usage={"completion_tokens": 1}),
    )
    with FakeServer(*replies, models=listed) as server, Talk(server.url) as talk:
        assert b"na[2Jme at" in talk.greeting
        talk.converse(
            (b"hi", b"\x1b[32ma]\x1b[0m0;title2Jb\tc\nd\n"),
            (b"hi", b"\x1b[2m128 tokens, 21.2 tokens/s, 61 of 80 "),
            (b"hi", b"\x1b[2m1 tokens\x1b"),
            (b"/stats", b"last answer: 1 tokens\x1b[0m\n\x1b[2mall answers: 129 tokens, "),
        )


def test_an_answer_is_generated_again_and_the_history_is_kept_in_a_private_file(tmp_path: Path) -> None:
    replies = (says("one"), says("two"), refuses(503, "busy"), Reply(piece("thr"), ending=BROKEN), says("four"))
    env = {"DUO_CONFIG": str(tmp_path / "new" / "config")}
    with FakeServer(*replies, says("five")) as server:
        with Talk(server.url, "-s", "5", env=env) as talk:
            texts = (b"a", b"/regen", b"/regen", b"/regen", b"b\nc")
            talk.converse((b"/regen", b"there is no answer yet"), *((text, b"") for text in texts))
        with Talk(server.url, env=env) as talk:
            talk.converse((UP * 3, b"five"))
    again, last = [[("user", "a")]] * 4, ("user", "b\nc")
    # A failure without any text keeps the answer that there was.
    assert server.conversations == [*again, [("user", "a"), ("assistant", "thr"), last], [last]]
    assert [body.get("seed") for body in server.questions] == [5, 6, 7, 8, 5, None]
    (file,) = (tmp_path / "new" / "config").iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("chat_history", 0o600)


def test_what_is_typed_during_an_answer_is_in_the_next_input_line_and_not_sent() -> None:
    gate, keys = threading.Event(), b"nexx\x7ft" + ENTER + b"line" + ENTER
    reply = Reply(piece("so far, "), rest=(gate, piece("so good") + end()))
    with FakeServer(reply, says("ok")) as server, Talk(server.url, before=AS_A_SHELL) as talk:
        talk.ask(b"a", until=b"so far, ")
        with Path(f"/proc/{talk.process.pid}/fd/0").open("rb", buffering=0) as terminal:

            def n_typed() -> int:
                return int(struct.unpack("i", fcntl.ioctl(terminal.fileno(), termios.FIONREAD, bytes(4)))[0])

            talk.type(keys)
            wait_until(lambda: n_typed() >= len(keys))
        gate.set()
        assert talk.read_until(PROMPT).startswith(b"so good\n")
        talk.read_until(b"line")
        talk.ask(b"!")
        talk.leave()
    assert server.conversations[1][-1] == ("user", "next\nline!")


@pytest.mark.parametrize("during", ["input", "answer"])
def test_the_terminal_is_as_before_when_the_chat_has_ended(during: str) -> None:
    tell_modes = f"{AS_A_SHELL}import os; os.write(1, repr(termios.tcgetattr(0)).encode())\n"
    with FakeServer(Reply(piece("so far"), ending=HELD)) as server, Talk(server.url, before=tell_modes) as talk:
        before = ast.literal_eval(talk.greeting.partition(b"]]")[0].decode() + "]]")
        if during == "answer":
            talk.ask(b"a", until=b"so far")
        assert not talk.modes[3] & (termios.ECHO | termios.ICANON)
        with Path(f"/proc/{talk.process.pid}/fd/0").open("rb", buffering=0):  # the last user of a terminal resets it
            talk.process.send_signal(signal.SIGTERM)
            assert talk.process.wait(60) == 128 + signal.SIGTERM
            assert talk.modes == before


@pytest.mark.parametrize("ending", ["SIGHUP", "SIGTERM", "closed"])
def test_a_chat_that_a_signal_ends_keeps_its_memory(ending: str, demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    path, options = tmp_path / "chat.memory", ("-n", "8", "--ignore-eos", "-t", "1", "--no-profile")
    with Talk("-m", demo_pair[1], "--memory", path, *options) as talk:
        talk.ask(b"Count from 1 to 9.")
        if ending == "closed":  # then nobody sees the status
            talk.hang_up()
            talk.process.wait(60)
        else:
            talk.process.send_signal(signal.Signals[ending])
            assert talk.process.wait(60) == 128 + signal.Signals[ending]
    assert summary(path)[1] == 8


def test_a_chat_that_was_stopped_by_the_shell_sets_the_terminal_again() -> None:
    gate = threading.Event()
    reply = Reply(piece("so far"), rest=(gate, piece("so good")), ending=HELD)
    with FakeServer(reply) as server, Talk(server.url, before=AS_A_SHELL) as talk:
        talk.ask(b"a", until=b"so far")
        quiet, shells = talk.modes, talk.modes
        talk.process.send_signal(signal.SIGSTOP)
        shells[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(talk.master, termios.TCSANOW, shells)
        talk.process.send_signal(signal.SIGCONT)
        gate.set()  # another thread may get the signal, and the main one handles it when it wakes up
        wait_until(lambda: talk.modes == quiet)
        talk.type(CTRL_C)
        talk.read_until(PROMPT)
        talk.leave()


def test_a_model_in_this_process(demo_pair: tuple[Path, Path]) -> None:
    options = (*ONE_EACH, "-c", "256", "-n", "12", "--ignore-eos", "-p", "Say one word.")
    with Talk(*models(*demo_pair), *options, before=SLOW_TARGET) as talk:
        assert demo_pair[0].name.encode() + b", draft " + demo_pair[1].name.encode() in talk.greeting
        assert b"> Say one word." in talk.greeting
        assert b" tokens/s" in talk.greeting
        assert b"this is the same answer: others need a temperature above 0 (--temp)" in talk.ask(b"/regen")
        talk.ask(b"Tell me a story.", until=NO_PROMPT)
        talk.read_until(b" ")
        talk.type(CTRL_C * 2)
        assert b"stopped" in talk.read_until(PROMPT)
        talk.converse(
            (b"word " * 300, b"the context 256 (-c)"),
            (b"/clear", b""),
            (b"Once more.", b" tokens/s"),
        )
