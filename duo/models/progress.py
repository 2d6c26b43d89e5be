"""How the rooms below the command line report a long step."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told again and again how far a step has come, always from the thread that called."""

    def __call__(self, description: str, done: int, total: int | None) -> None:
        """Take note: of `description`, `done` bytes of `total` are done. No total: nobody knows how many."""


def silent(description: str, done: int, total: int | None) -> None:
    """Show nothing."""
