"""`duo chat`: talks with an OpenAI-compatible server, on a terminal or in a pipe."""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Callable
from types import FrameType

from duo.cli.chat_client import Answer, Message, Server, ServerError, describe
from duo.cli.options.chat import ChatOptions
from duo.cli.options.prompt import read_argument, read_prompt
from duo.cli.options.secrets import api_keys
from duo.cli.terminal.console import say, stderr
from duo.cli.terminal.writer import TextWriter, marks_tokens
from duo.errors import UsageError

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HELP = """\
Enter         sends
Alt-Enter     begins a new line, as Ctrl-J does
Ctrl-C        stops an answer, or clears the line
Up            brings back what was sent before
:new          forgets the conversation
:system TEXT  sets the system prompt and forgets the conversation; alone, shows it
:stats        shows the figures of the last answer and of all
:quit         leaves, as :q and Ctrl-D do
::            at the beginning of a message stands for one :"""


def chat(options: ChatOptions) -> int:
    """Talk until the user leaves, or answer what comes in a pipe. Returns the exit status.

    Raises DuoError, and BrokenPipeError when nobody reads any more.
    """
    model = options.model and read_argument(options.model, "--model", escape=False)
    system = options.system_prompt and read_argument(options.system_prompt, "--system-prompt", escape=False)
    if options.temp is not None and not 0 <= options.temp < math.inf:
        raise UsageError(f"--temp must be 0 or more, not {options.temp:g}")
    file, key = options.api_key_file, options.api_key
    if file is not None and not (key := next(iter(api_keys(None, file)), None)):
        raise UsageError(f"--api-key-file {file}: there is no key in it")
    settings = {"max_tokens": options.predict, "temperature": options.temp, "seed": options.seed}
    given = {name: value for name, value in settings.items() if value is not None}
    server = Server(options.url, key=key, model=model or None, settings=given)
    printer = Printer(marks=marks_tokens(options.color))
    if sys.stdin is not None and sys.stdin.isatty():
        return Talk(server, system, printer).run()
    text = read_prompt(None, "-", escape=False) or ""
    try:
        server.answer([*_beginning(system), {"role": "user", "content": text}], Answer(), printer.show)
    finally:
        if sys.stdout.isatty():
            printer.end()
    return 0


def _beginning(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


class Printer(TextWriter):
    """Writes answers to stdout as they come; with `marks`, what a draft guessed in green."""

    def show(self, text: str, n_accepted: int) -> None:
        """Write a piece, without what could drive a terminal. Raises BrokenPipeError when nobody reads any more."""
        guessed, own = (self._harmless(part.encode()) for part in (text[:n_accepted], text[n_accepted:]))
        self._last = (guessed + own or self._last)[-1:]
        self._write((b"\x1b[32m%s\x1b[0m" % guessed if guessed and self._marks else guessed) + own)

    def end(self) -> None:
        """Put what follows on a line of its own."""
        if self._last not in (b"", b"\n"):
            self._last = b""
            self._write(b"\n")

    def note(self, text: str) -> None:
        """Something that is no part of an answer."""
        stderr.print(_CONTROLS.sub("", text), markup=False, style="dim" if self._marks else "")


class Talk:
    """A conversation on a terminal."""

    def __init__(self, server: Server, system: str | None, printer: Printer) -> None:
        """From now on Ctrl-C ends what the server is needed for, and at other times nothing."""
        # Only here, as a pipe need not wait for it.
        from duo.cli.terminal.chat_input import input_line  # noqa: PLC0415

        self._server = server
        self._printer = printer
        self._note = printer.note
        self._line = input_line()
        self._system = system
        self._messages = _beginning(system)
        self._answers = [Answer()]
        self._stoppable = False
        signal.signal(signal.SIGINT, self._interrupt)

    def run(self) -> int:
        """Talk until the user leaves. Returns the exit status. Raises BrokenPipeError when nobody reads any more."""
        self._try(lambda: self._note(f"{self._server.model()} at {self._server.name}; :help shows what can be done"))
        while True:
            try:
                # A byte that is no UTF-8 comes as half a character, which no encoding has.
                text = self._line.prompt().encode("utf-8", "replace").decode()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                self._note("Ctrl-D or :quit leaves")
                continue
            command = re.match(r":(?!:)(\S*)\s*(.*)", text, re.DOTALL)
            if command is None:
                self._ask(text[1:] if text.startswith("::") else text)
            elif command[1] in ("q", "quit") and not command[2]:
                return 0
            else:
                self._obey(command[1], command[2].strip())

    def _ask(self, text: str) -> None:
        """Send a message and show the answer. What brings none is no part of the conversation."""
        if not text.strip():
            return
        question, answer = {"role": "user", "content": text}, Answer()
        finished = self._try(lambda: self._server.answer([*self._messages, question], answer, self._printer.show))
        if finished or answer.text:
            self._messages += [question, {"role": "assistant", "content": answer.text}]
        self._answers.append(answer)
        if finished and not answer.text:
            self._note("the answer is empty")
        if figures := describe(answer):
            self._note(figures)

    def _try(self, work: Callable[[], None]) -> bool:
        """Do what the server is needed for; say what was in the way. Returns whether it came to its end."""
        try:
            try:
                self._stoppable = True
                work()
            finally:
                self._stoppable = False
                self._printer.end()
        except KeyboardInterrupt:
            self._note("\nstopped")  # the terminal has shown ^C
        except ServerError as error:
            say(f"duo: error: {error}")
        else:
            return True
        return False

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        # Only once: the second is not to break off what the first has begun.
        if self._stoppable:
            self._stoppable = False
            raise KeyboardInterrupt

    def _obey(self, name: str, text: str) -> None:
        """Do what `:name text` says."""
        if name not in ("new", "system", "stats", "help", "quit", "q"):
            self._note(f":{name} is no command; :help lists them")
        elif text and name != "system":
            self._note(f":{name} takes no text; to send this, begin with ::")
        elif name == "help":
            self._note(_HELP)
        elif name == "stats":
            known = [describe(*answers) or "nothing is known" for answers in (self._answers[-1:], self._answers)]
            self._note(f"last answer: {known[0]}\nall answers: {known[1]}")
        elif name == "system" and not text:
            self._note(self._system or "there is no system prompt")
        else:
            self._system = text or self._system
            self._messages = _beginning(self._system)
            self._note("a new conversation")
