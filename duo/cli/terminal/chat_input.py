"""The input line of `duo chat`."""

import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output

from duo.cli.terminal.interrupts import handling
from duo.errors import UsageError
from duo.models.storage import MIB, config_dir

_MAX_HISTORY = 64 * MIB  # all of it is read
_ENTERS = (Keys.ControlM, Keys.ControlJ)


def input_line() -> PromptSession[str]:
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


def keep_typed_ahead(line: PromptSession[str]) -> None:
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
def no_echo() -> Iterator[None]:
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
