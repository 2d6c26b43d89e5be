"""The line on which `duo chat` is written to."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from duo.errors import UsageError
from duo.models.profiles import config_dir


class InputLine:
    """An input line with a history; Enter sends, Alt-Enter and Ctrl-J make a new line."""

    def __init__(self) -> None:
        self._session: PromptSession[str] = PromptSession(
            [("", "\n"), ("bold", "> ")],
            multiline=True,
            history=_history(),
            key_bindings=_keys(),
            enable_suspend=True,
            # Beside a text that goes elsewhere, there may be a terminal yet.
            output=create_output(sys.stdout if sys.stdout.isatty() else sys.stderr),
        )

    def read(self) -> str:
        """A message. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C on an empty line."""
        # A byte that is no UTF-8 comes as half a character, which no encoding has.
        return self._session.prompt().encode("utf-8", "replace").decode()


class _KeptHistory(FileHistory):
    """What was sent; a full disk ends only the keeping."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history() -> History:
    """In a file that only the user can read, if one can be made."""
    try:
        path = config_dir() / "chat_history"
        _make_private(path)
    except (OSError, UsageError):
        return InMemoryHistory()
    return _KeptHistory(path)


def _make_private(path: Path) -> None:
    """Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.open("r+b").close()


def _keys() -> KeyBindings:
    keys = KeyBindings()
    at_line = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=at_line)
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=at_line)
    @keys.add("c-j", filter=at_line)
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=at_line)
    @keys.add("<sigint>", filter=at_line)
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys
