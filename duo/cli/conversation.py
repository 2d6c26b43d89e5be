"""A conversation on a terminal: its input line, and what is said."""

import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output

from duo.cli.commands.chat import Answer, ChatBackend, Message, beginning, describe
from duo.cli.terminal.console import say, with_options
from duo.cli.terminal.interrupts import handling, signals_that_end
from duo.cli.terminal.writer import Printer
from duo.errors import DeviceError, DuoError, UsageError
from duo.models.storage import MIB, config_dir

_MAX_HISTORY = 64 * MIB  # all of it is read
_ENTERS = (Keys.ControlM, Keys.ControlJ)
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


class Talk:
    """A conversation on a terminal."""

    def __init__(self, backend: ChatBackend, system: str | None, printer: Printer) -> None:
        self._backend, self._printer, self._note = backend, printer, printer.note
        self._line = _input_line()
        self._system, self._messages = system, beginning(system)
        self._attempt = 0  # how often the last question was answered before
        self._answers = [Answer()]
        self._stoppable = False

    def run(self, first: str | None = None) -> int:
        """Send `first`, then chat until the user ends it. Returns the exit status. Raises DeviceError."""
        with handling(self._on_signal, *signals_that_end()), _no_echo():
            self._try(lambda: self._note(f"{self._backend.greeting()}; /help lists the commands"))
            if first is not None:
                self._note(f"> {first}")
                self._ask(first)
            while True:
                try:
                    _keep_typed_ahead(self._line)
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
            self._answer([*self._messages, {"role": "user", "content": text}])

    def _answer(self, messages: list[Message], attempt: int = 0) -> None:
        """Print an answer to `messages`, after `attempt` other ones. Without one, they are not kept."""
        self._attempt, answer = attempt, Answer()
        finished = self._try(lambda: self._backend.answer(messages, answer, self._printer.show, attempt))
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
        """Ctrl-C interrupts requests only; the other signals end the chat, and the terminal is as before."""
        if number != signal.SIGINT:
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
        before = self._messages
        if not before or before[-1]["role"] != "assistant":
            self._note("there is no answer yet")
            return
        self._answer(before[:-1], self._attempt + 1)
        if self._messages is not before and self._messages == before:
            self._note("this is the same answer: others need a temperature above 0 (--temp)")


# The input line


def _input_line() -> PromptSession[str]:
    """An input line with history. prompt() raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C on an empty line."""
    return PromptSession(
        [("", "\n"), ("bold", "> ")], multiline=True, history=_history(), key_bindings=_keys(), enable_suspend=True,
        output=create_output(sys.stdout if sys.stdout.isatty() else sys.stderr),  # stdout may be redirected
    )  # fmt: skip


class _KeptHistory(FileHistory):
    """A history file; errors such as a full disk are ignored."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    """A history file that only the user can read, if it can be created."""
    try:
        path = config_dir() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (not path.is_file() or path.stat().st_size > _MAX_HISTORY):
            return InMemoryHistory()
        path.open("ab").close()
        path.chmod(0o600)
    except (OSError, UsageError):
        return InMemoryHistory()
    return _KeptHistory(path)


def _keys() -> KeyBindings:
    keys, at_line = KeyBindings(), has_focus(DEFAULT_BUFFER)
    keys.add("enter", filter=at_line)(lambda event: event.current_buffer.validate_and_handle())
    for new_line in (("escape", "enter"), ("c-j",)):
        keys.add(*new_line, filter=at_line)(lambda event: event.current_buffer.insert_text("\n"))
    for interrupt in ("c-c", "<sigint>"):
        keys.add(interrupt, filter=at_line)(_clear)
    return keys


def _clear(event: KeyPressEvent) -> None:
    if event.current_buffer.text:
        event.current_buffer.reset()
    else:
        event.app.exit(exception=KeyboardInterrupt)


def _keep_typed_ahead(line: PromptSession[str]) -> None:
    """Put what was typed since the last message into the next line, unsent: an Enter within begins a new line."""
    source = line.app.input
    keys = get_typeahead(source)  # read together with the Enter of the last message
    while more := source.read_keys():
        keys += more
    keys += source.flush_keys()  # an Escape, which may begin a sequence, is held back
    keys = [key for key in keys if key.key != Keys.CPRResponse]  # the terminal's own, about the last input line
    while keys and keys[-1].key in (*_ENTERS, Keys.Escape):  # Escape would change the next key
        keys.pop()
    store_typeahead(source, [KeyPress(Keys.ControlJ) if key.key in _ENTERS else key for key in keys])


@contextmanager
def _no_echo() -> Iterator[None]:
    """Outside an input line, what is typed waits for the next, unseen; Ctrl-C sends a signal. For the main thread."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    quiet = termios.tcgetattr(terminal)
    quiet[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
    quiet[3] = (quiet[3] & ~(termios.ECHO | termios.ICANON | termios.IEXTEN)) | termios.NOFLSH
    quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0

    def apply(*_: object) -> None:
        termios.tcsetattr(terminal, termios.TCSANOW, quiet)

    apply()
    try:
        with handling(apply, signal.SIGCONT):  # after Ctrl-Z and fg, the modes are the shell's
            yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)
