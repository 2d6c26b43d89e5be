"""Profiles: measurements of a pair of models on this machine, stored in the user's config directory."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from duo.models.cache import user_dir
from duo.models.files import MIB, read_own

_VERSION = 2
_MAX_BYTES = MIB  # a profile has a few KiB
_MAX_DEPTH = 8  # levels of lists and objects: a profile has six


def config_dir() -> Path:
    """The config directory: $DUO_CONFIG, $XDG_CONFIG_HOME/duo or the system's default. Raises UsageError."""
    purpose = "profiles: set DUO_CONFIG or profile=False"
    return user_dir("DUO_CONFIG", "XDG_CONFIG_HOME", ".config", "Library/Application Support", purpose)


class Profile:
    """One file for the pair, the machine and the options in `key`. Nothing in it is required to run."""

    def __init__(self, key: dict[str, Any]) -> None:
        """Raises UsageError if there is no config directory."""
        self._key = {"version": _VERSION, **key}
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = config_dir() / "profiles" / f"{digest[:16]}.json"

    def load(self) -> dict[str, Any]:
        """The saved document; empty if the file is missing or damaged, in whatever way.

        Whether its values are plausible is checked where they are used.
        """
        try:
            document = json.loads(read_own(self.path, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        is_ours = isinstance(document, dict) and _is_shallow(document, _MAX_DEPTH) and document.get("for") == self._key
        return document if is_ours else {}

    def save(self, document: dict[str, Any]) -> None:
        """Save `document` atomically. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({**document, "for": self._key}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def _is_shallow(value: Any, depth: int) -> bool:
    """Whether `value` has at most `depth` levels, so that it can be written again."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (depth > 0 and all(_is_shallow(item, depth - 1) for item in inner))
