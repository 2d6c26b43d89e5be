"""`duo chat`: talks with an OpenAI-compatible server, on a terminal or in a pipe."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from duo.cli.chat_client import Answer, Figures, Message, Piece, Server, ServerError
from duo.cli.chat_options import ChatOptions
from duo.cli.output import marks_tokens, say, stderr
from duo.cli.prompt import read_argument, read_prompt
from duo.cli.secrets import api_keys
from duo.errors import UsageError

_ACCEPTED, _RESET = "\x1b[32m", "\x1b[0m"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_COMMANDS = ("new", "system", "stats", "help", "quit", "q")
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
    """Talk until the user leaves, or answer what comes in a pipe. Returns the exit status. Raises DuoError."""
    model = options.model and read_argument(options.model, "--model", escape=False)
    system = options.system_prompt and read_argument(options.system_prompt, "--system-prompt", escape=False)
    server = Server(options.url, key=_key(options), model=model or None, settings=_settings(options))
    printer = Printer(marks=marks_tokens(options.color))
    try:
        if sys.stdin is None or not sys.stdin.isatty():
            return _answer_stdin(server, system, printer)
        return Talk(server, system, printer).run()
    except BrokenPipeError:  # a reader who has had enough is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _settings(options: ChatOptions) -> dict[str, float]:
    """What was given, under the protocol's names. Raises UsageError."""
    if options.temp is not None and not 0 <= options.temp < math.inf:
        raise UsageError(f"--temp must be 0 or more, not {options.temp:g}")
    settings = {"max_tokens": options.predict, "temperature": options.temp, "seed": options.seed}
    return {name: value for name, value in settings.items() if value is not None}


def _key(options: ChatOptions) -> str | None:
    """Raises UsageError for a file that has none."""
    path = options.api_key_file
    if path is None:
        return options.api_key
    if not (keys := api_keys(None, path)):
        raise UsageError(f"--api-key-file {path}: there is no key in it")
    return keys[0]


def _answer_stdin(server: Server, system: str | None, printer: Printer) -> int:
    """Raises DuoError."""
    text = read_prompt(None, "-", escape=False) or ""
    messages = [*_beginning(system), {"role": "user", "content": text}]
    try:
        asyncio.run(server.answer(messages, Answer(), printer.show))
    finally:
        if sys.stdout.isatty():
            printer.end()
    return 0


def _beginning(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


class Printer:
    """Writes answers to stdout as they come; with `marks`, what a draft guessed in green."""

    def __init__(self, *, marks: bool) -> None:
        self.marks = marks
        self._is_terminal = sys.stdout.isatty()
        self._last = "\n"

    def show(self, piece: Piece) -> None:
        """Write a piece, without what could drive a terminal. Raises BrokenPipeError when nobody reads any more."""
        guessed, own = (self._plain(text) for text in (piece.text[: piece.n_accepted], piece.text[piece.n_accepted :]))
        self._last = (guessed + own or self._last)[-1]
        self._write((f"{_ACCEPTED}{guessed}{_RESET}" if guessed and self.marks else guessed) + own)

    def end(self) -> None:
        """Put what follows on a line of its own."""
        if self._last != "\n":
            self._last = "\n"
            self._write("\n")

    def _plain(self, text: str) -> str:
        return _CONTROLS.sub("", text) if self._is_terminal else text

    def _write(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:  # with PYTHONUNBUFFERED, a part of it may be taken at a time
            data = data[sys.stdout.buffer.write(data) :]
        sys.stdout.buffer.flush()


class Stopper:
    """What Ctrl-C does from now on: it ends the work that is being done, and at other times nothing."""

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        signal.signal(signal.SIGINT, self._handle)

    def run(self, work: Coroutine[Any, Any, object]) -> bool:
        """Do `work`. Returns whether it came to its end."""

        async def stoppable() -> None:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                await work
            finally:
                self._stop = None

        try:
            asyncio.run(stoppable())
        except asyncio.CancelledError:
            return False
        return True

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        # Only once: the second is not to break off what the first has begun.
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()


class Talk:
    """A conversation on a terminal."""

    def __init__(self, server: Server, system: str | None, printer: Printer) -> None:
        """Ctrl-C means something else from now on."""
        # Only here, as a pipe need not wait for it.
        from duo.cli.chat_input import InputLine  # noqa: PLC0415

        self._server = server
        self._printer = printer
        self._line = InputLine()
        self._system = system
        self._messages = _beginning(system)
        self._stopper = Stopper()
        self._last = self._all = Figures()

    def run(self) -> int:
        """Talk until the user leaves. Returns the exit status. Raises BrokenPipeError when nobody reads any more."""
        self._try(self._greet())
        while True:
            try:
                text = self._line.read()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                self._note("Ctrl-D or :quit leaves")
                continue
            command = re.match(r":(?!:)(\S*)\s*(.*)", text, re.DOTALL)
            if command is None:
                self._ask(text[1:] if text.startswith("::") else text)
            elif not self._obey(command[1], command[2].strip()):
                return 0

    async def _greet(self) -> None:
        self._note(f"{await self._server.model()} at {self._server.name}; :help shows what can be done")

    def _ask(self, text: str) -> None:
        """Send a message and show the answer. What brings none is no part of the conversation."""
        if not text.strip():
            return
        question, answer = {"role": "user", "content": text}, Answer()
        finished = self._try(self._server.answer([*self._messages, question], answer, self._printer.show))
        if finished or answer.text:
            self._messages += [question, {"role": "assistant", "content": answer.text}]
        self._last = answer.figures
        self._all += answer.figures
        if finished and not answer.text:
            self._note("the answer is empty")
        if str(self._last):
            self._note(str(self._last))

    def _try(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do what the server is needed for; say what was in the way. Returns whether it came to its end."""
        try:
            finished, problem = self._stopper.run(work), ""
        except ServerError as error:
            finished, problem = False, f"duo: error: {error}"
        self._printer.end()
        if problem:
            say(problem)
        elif not finished:
            self._note("\nstopped")  # the terminal has shown ^C
        return finished

    def _obey(self, name: str, text: str) -> bool:
        """Do what `:name text` says. Returns whether to go on."""
        if name not in _COMMANDS:
            self._note(f":{name} is no command; :help lists them")
        elif text and name != "system":
            self._note(f":{name} takes no text; to send this, begin with ::")
        elif name in ("q", "quit"):
            return False
        elif name == "help":
            self._note(_HELP)
        elif name == "stats":
            known = [str(figures) or "nothing is known" for figures in (self._last, self._all)]
            self._note(f"last answer: {known[0]}\nall answers: {known[1]}")
        elif name == "system" and not text:
            self._note(self._system or "there is no system prompt")
        else:
            self._system = text or self._system
            self._messages = _beginning(self._system)
            self._note("a new conversation")
        return True

    def _note(self, text: str) -> None:
        """Something that is no part of an answer."""
        stderr.print(_CONTROLS.sub("", text), markup=False, style="dim" if self._printer.marks else "")
