"""`duo chat`: a client of OpenAI-compatible servers, on a terminal or in a pipe."""

from __future__ import annotations

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
from duo.cli.terminal.writer import TextWriter, coloured, marks_tokens
from duo.config import SamplingConfig, StopConfig
from duo.errors import UsageError
from duo.spec.types import Source

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COMMANDS = ("new", "system", "stats", "help", "quit", "q")
_HELP = """\
Enter         send the message
Alt-Enter     begin a new line (also Ctrl-J)
Ctrl-C        stop the answer, or clear the line
Up            recall an earlier message
:new          start a new conversation
:system TEXT  set the system prompt and start a new conversation; without TEXT, show it
:stats        show statistics of the last answer, and of all answers
:quit         exit (also :q and Ctrl-D)
::            at the start of a message: a single :"""


def chat(options: ChatOptions) -> int:
    """Chat until the user quits, or answer standard input. Returns the exit status.

    Raises DuoError, and BrokenPipeError if stdout is closed.
    """
    model = options.model and read_argument(options.model, "--model", escape=False)
    system = options.system_prompt and read_argument(options.system_prompt, "--system-prompt", escape=False)
    SamplingConfig(temp=options.temp or 0.0, seed=max(0, options.seed or 0))  # these check themselves
    StopConfig(options.predict or 0)
    file, key = options.api_key_file, options.api_key
    if file is not None and not (key := next(iter(api_keys(None, file)), None)):
        raise UsageError(f"--api-key-file {file}: no key in this file")
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
    """Writes answers to stdout; with `marks`, accepted candidates in colour."""

    def show(self, text: str, n_accepted: int, source: Source) -> None:
        """Write a piece, of which `n_accepted` characters were candidates of `source`. Raises BrokenPipeError."""
        drafted, own = (self._harmless(part.encode()) for part in (text[:n_accepted], text[n_accepted:]))
        self._last = (drafted + own or self._last)[-1:]
        self._write((coloured(drafted, source) if drafted and self._marks else drafted) + own)

    def end(self) -> None:
        """Begin a new line, unless at the start of one."""
        if self._last not in (b"", b"\n"):
            self._last = b""
            self._write(b"\n")

    def note(self, text: str) -> None:
        """Print a message that is not part of an answer."""
        stderr().print(_CONTROLS.sub("", text), markup=False, style="dim" if self._marks else "")


class Talk:
    """A conversation on a terminal."""

    def __init__(self, server: Server, system: str | None, printer: Printer) -> None:
        """From now on, Ctrl-C interrupts requests only."""
        from duo.cli.terminal.chat_input import input_line  # noqa: PLC0415 - slow to import

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
        """Chat until the user quits. Returns the exit status. Raises BrokenPipeError if stdout is closed."""
        self._try(lambda: self._note(f"{self._server.model()} at {self._server.name}; :help lists the commands"))
        while True:
            try:
                # Bytes that are not UTF-8 are read as surrogates, which cannot be sent.
                text = self._line.prompt().encode("utf-8", "replace").decode()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                self._note("to exit, use Ctrl-D or :quit")
                continue
            command = re.match(r":(?!:)(\S*)\s*(.*)", text, re.DOTALL)
            if command is None:
                self._ask(text[1:] if text.startswith("::") else text)
            elif command[1] in ("q", "quit") and not command[2]:
                return 0
            else:
                self._run_command(command[1], command[2].strip())

    def _ask(self, text: str) -> None:
        """Send a message and print the answer. Without one, the message is not kept."""
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

    def _try(self, request: Callable[[], None]) -> bool:
        """Run a request and report errors. Returns whether it succeeded."""
        try:
            try:
                self._stoppable = True
                request()
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
        if self._stoppable:
            self._stoppable = False  # a second Ctrl-C must not interrupt the cleanup
            raise KeyboardInterrupt

    def _run_command(self, name: str, text: str) -> None:
        """Run `:name text`."""
        if name not in _COMMANDS:
            self._note(f":{name} is not a command; :help lists them")
        elif text and name != "system":
            self._note(f":{name} takes no text; to send this, begin with ::")
        elif name == "help":
            self._note(_HELP)
        elif name == "stats":
            known = [describe(*answers) or "unknown" for answers in (self._answers[-1:], self._answers)]
            self._note(f"last answer: {known[0]}\nall answers: {known[1]}")
        elif name == "system" and not text:
            self._note(self._system or "no system prompt")
        else:
            self._system = text or self._system
            self._messages = _beginning(self._system)
            self._note("new conversation")
