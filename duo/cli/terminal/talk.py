"""A conversation on a terminal."""

import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duo.cli.terminal.console import say, stderr, with_options
from duo.cli.terminal.interrupts import handling
from duo.cli.terminal.writer import ACCEPTED, DIM, RESET, TextWriter
from duo.errors import DeviceError, DuoError
from duo.speculation.types import Origin

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ALIASES = {"new": "clear", "quit": "exit", "bye": "exit", "q": "exit", "?": "help"}
_HELP = """\
/help         show this list
/exit         end the chat (also /quit, /bye, Ctrl-D)
/clear        begin a new conversation
/regen        generate the last answer again
/system TEXT  set the system prompt and begin a new conversation; without TEXT, show it
/stats        show statistics of the last answer, and of all answers
//            at the start of a message: a single /

Enter         send the message
Alt-Enter     begin a new line (also Ctrl-J)
Ctrl-C        end the answer, or clear the line
Up            recall an earlier message"""

Message = dict[str, str]
# Shows a piece of text, of which as many characters were candidates, of the draft or of the lookup. None: the text is
# reasoning, which is not part of the answer.
Show = Callable[[str, int, Origin | None], None]


@dataclass(slots=True)
class Answer:
    """An answer so far."""

    text: str = ""
    figures: tuple[int, float, int, int] = (0, 0.0, 0, 0)  # tokens, seconds, verified, accepted; 0: unknown
    prompt: tuple[int, int] = (0, 0)  # tokens of the conversation, and those of them that were in the KV cache
    remark: str = ""  # why it is empty or incomplete


class ChatBackend(Protocol):
    """What a chat talks to: a server, or an engine in this process."""

    def greeting(self) -> str:
        """What it is, in words. Raises DuoError if it cannot be reached."""

    def answer(self, messages: list[Message], answer: Answer, show: Show, attempt: int = 0) -> None:
        """Generate an answer, and add it to `answer`, showing each piece.

        `attempt`: how often the same messages were answered before, for another seed. Raises DuoError. After
        KeyboardInterrupt, which ends the answer, `answer` has what was shown, and its figures if they are known.
        """


def limit_remark(n_predict: int) -> str:
    """That -n ended an answer."""
    return f"the answer is not complete: -n is {n_predict}"


def describe(*answers: Answer) -> str:
    """The statistics of answers, added up; empty if unknown."""
    n_tokens, seconds, n_verified, n_accepted = map(sum, zip(*(answer.figures for answer in answers), strict=True))
    words = [
        f"{n_tokens} tokens" if n_tokens else "",
        f"{n_tokens / seconds:.1f} tokens/s" if n_tokens and seconds else "",
        f"{n_accepted} of {n_verified} candidates accepted" if n_verified else "",
    ]
    return ", ".join(filter(None, words))


def beginning(system: str | None) -> list[Message]:
    """The messages before the first question."""
    return [{"role": "system", "content": system}] if system else []


class Printer(TextWriter):
    """Writes answers to stdout; with `marks`, accepted candidates in colour."""

    _thinks = False

    def show(self, text: str, n_accepted: int, source: Origin | None) -> None:
        """Write a piece: see Show. Reasoning is written on terminals only. Raises BrokenPipeError."""
        if self._thinks is not (source is None):
            self._thinks = not self._thinks
            self._aside("[Start thinking]\n" if self._thinks else "\n[End thinking]\n\n")
        if source is None:
            self._aside(text)
            return
        drafted, own = (self._harmless(part.encode()) for part in (text[:n_accepted], text[n_accepted:]))
        self._last = (drafted + own or self._last)[-1:]
        self._write((ACCEPTED[source] + drafted + RESET if drafted and self._marks else drafted) + own)

    def _aside(self, text: str) -> None:
        if self._on_terminal and (data := self._harmless(text.encode())):
            self._last = data[-1:]
            self._write(DIM + data + RESET if self._marks else data)

    def end_answer(self) -> None:
        """Begin a new line, unless at the start of one."""
        self._thinks = False
        if self._last not in (b"", b"\n"):
            self._last = b""
            self._write(b"\n")

    def note(self, text: str) -> None:
        """Print a message that is not part of an answer."""
        stderr().print(_CONTROLS.sub("", text), markup=False, style="dim" if self._marks else "")


class Talk:
    """A conversation on a terminal."""

    def __init__(self, backend: ChatBackend, system: str | None, printer: Printer) -> None:
        from duo.cli.terminal import chat_input  # noqa: PLC0415 - slow to import

        self._backend = backend
        self._printer = printer
        self._note = printer.note
        self._input = chat_input
        self._line = chat_input.input_line()
        self._system = system
        self._messages = beginning(system)
        self._attempt = 0  # how often the last question was answered before
        self._answers = [Answer()]
        self._stoppable = False

    def run(self, first: str | None = None) -> int:
        """Send `first`, then chat until the user ends it. Returns the exit status. Raises DeviceError."""
        with handling(self._on_signal, signal.SIGINT, signal.SIGTERM), self._input.no_echo():
            self._try(lambda: self._note(f"{self._backend.greeting()}; /help lists the commands"))
            if first is not None:
                self._note(f"> {first}")
                self._ask(first)
            while True:
                try:
                    self._input.keep_typed_ahead(self._line)
                    # Bytes that are not UTF-8 are read as surrogates, which cannot be sent.
                    text = self._line.prompt().encode("utf-8", "replace").decode()
                except EOFError:
                    return 0
                except KeyboardInterrupt:
                    self._note("to end the chat, use Ctrl-D or /exit")
                    continue
                command = re.match(r"/(?!/)(\S*)\s*(.*)", text, re.DOTALL)
                if command is None:
                    self._ask(text[1:] if text.startswith("//") else text)
                elif self._run_command(_ALIASES.get(command[1], command[1]), command[2].strip()):
                    return 0

    def _ask(self, text: str) -> None:
        if text.strip():
            self._attempt = 0
            self._answer([*self._messages, {"role": "user", "content": text}])

    def _answer(self, messages: list[Message]) -> None:
        """Print the answer to `messages`. Without one, they are not kept."""
        answer = Answer()
        finished = self._try(lambda: self._backend.answer(messages, answer, self._printer.show, self._attempt))
        if finished or answer.text:
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        self._answers.append(answer)
        for words in filter(None, (answer.remark, describe(answer))):
            self._note(words)

    def _try(self, request: Callable[[], None]) -> bool:
        """Run a request and report errors. Returns whether it succeeded."""
        try:
            try:
                self._stoppable = True
                request()
            finally:
                self._stoppable = False
                self._printer.end_answer()
        except KeyboardInterrupt:
            self._note("stopped")
        except DeviceError:  # the model cannot be used any more
            raise
        except DuoError as error:
            say(f"duo: error: {with_options(str(error))}")
        else:
            return True
        return False

    def _on_signal(self, number: int, _: object) -> None:
        """Ctrl-C interrupts requests only; SIGTERM ends the chat, and the terminal is as before."""
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            sys.exit(128 + number)
        if self._stoppable:
            self._stoppable = False  # a second Ctrl-C must not interrupt the cleanup
            raise KeyboardInterrupt

    def _run_command(self, name: str, text: str) -> bool:
        """Run `/name text`. Returns whether the chat ends."""
        match name, text:
            case "exit", "":
                return True
            case "help", "":
                self._note(_HELP)
            case "regen", "":
                self._regenerate()
            case "stats", "":
                n_tokens, n_cached = self._answers[-1].prompt
                known = f"; {n_tokens} tokens of conversation, {n_tokens - n_cached} of them new" if n_tokens else ""
                self._note(f"last answer: {describe(self._answers[-1]) or 'unknown'}{known}")
                self._note(f"all answers: {describe(*self._answers) or 'unknown'}")
            case "system", "":
                self._note(self._system or "no system prompt")
            case ("system", _) | ("clear", ""):
                self._system = text or self._system
                self._messages = beginning(self._system)
                self._note("new conversation")
            case _:
                self._note(f"/{name} {text}".strip() + " is not a command (/help lists them); begin with // to send it")
        return False

    def _regenerate(self) -> None:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._note("there is no answer yet")
            return
        self._attempt += 1
        before = self._messages
        self._answer(before[:-1])
        if self._messages is not before and self._messages == before:
            self._note("this is the same answer: others need a temperature above 0 (--temp)")
