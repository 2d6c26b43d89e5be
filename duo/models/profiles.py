"""Profiles: what is known of a pair of models on this machine, kept in the user's config directory."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from duo.errors import UsageError
from duo.models.cache import named_folder

_VERSION = 2


def config_dir() -> Path:
    """Where duo keeps what it learned: $DUO_CONFIG, $XDG_CONFIG_HOME/duo or the system's usual place.

    Raises UsageError for a $DUO_CONFIG that is no absolute path, and when there is no home directory.
    """
    if named := named_folder("DUO_CONFIG", "XDG_CONFIG_HOME"):
        return named
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UsageError("there is no home directory to keep profiles in: set DUO_CONFIG or profile=False") from error
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".config") / "duo"


class Profile:
    """One file, for the pair, the machine and the options that `key` tells. Nothing in it is needed to run."""

    def __init__(self, key: dict[str, Any]) -> None:
        """Raises UsageError if there is no config directory."""
        self._key = {"version": _VERSION, **key}
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = config_dir() / "profiles" / f"{digest[:16]}.json"

    def load(self) -> dict[str, Any]:
        """What was kept; nothing if there is no such file, or it is damaged."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) and document.get("for") == self._key else {}

    def save(self, document: dict[str, Any]) -> None:
        """Keep it, whole or not at all. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({**document, "for": self._key}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
