"""Profiles: measurements of a pair of models on this machine, stored in the user's config directory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duo.models.cache import user_dir
from duo.models.files import MIB, read_own

_VERSION = 2
_MAX_BYTES = MIB  # a profile has a few KiB
_MAX_DEPTH = 8  # levels of lists and objects: a profile has six
_DIGITS = 6  # of the hash in a name: one pair has few profiles, and a wrong one is not used
_OLD_DIGITS = 16  # of the hash that was the whole name
_NAME = 60  # characters of a model's name in that of a profile: a file name has at most 255 bytes


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
        self.path = profiles_dir() / f"{_name(key)}-{digest[:_DIGITS]}.json"
        self._old_path = self.path.with_name(f"{digest[:_OLD_DIGITS]}.json")

    def load(self) -> dict[str, Any]:
        """The saved document; empty if the file is missing or damaged, in whatever way.

        Whether its values are plausible is checked where they are used.
        """
        if not self.path.exists():
            with suppress(OSError):  # there is none, or it cannot be renamed
                self._old_path.replace(self.path)
        document = _read(self.path)
        return document if document.get("for") == self._key else {}

    def save(self, document: dict[str, Any]) -> None:
        """Save `document` atomically. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({**document, "for": self._key}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SavedProfile:
    """A profile in the config directory, of any pair."""

    path: Path
    modified_s: float  # seconds since 1970
    document: dict[str, Any]  # as saved, with the key in "for"; empty if the file is damaged

    @property
    def name(self) -> str:
        """The name of the file without its suffix: target, draft and six hexadecimal digits."""
        return self.path.stem


def profiles_dir() -> Path:
    """Where profiles are. Raises UsageError if there is no config directory."""
    return config_dir() / "profiles"


def saved_profiles() -> list[SavedProfile]:
    """All profiles in the config directory, by name. Raises UsageError without one, and OSError."""
    found = []
    for path in sorted(profiles_dir().glob("*.json")):
        with suppress(FileNotFoundError):  # removed meanwhile
            found.append(SavedProfile(path, path.lstat().st_mtime, _read(path)))
    return found


def _name(key: dict[str, Any]) -> str:
    """The models in `key` as a part of a file name."""
    paths = [model.get("path") for model in key.get("models") or () if isinstance(model, dict)]
    return "+".join(_slug(Path(path).stem) for path in paths if isinstance(path, str)) or "models"


def _slug(name: str) -> str:
    """`name` in characters that every file system and shell takes as they are, without the number of a part."""
    name = re.sub(r"-00001-of-\d{5}$", "", name)
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")[:_NAME] or "model"


def _read(path: Path) -> dict[str, Any]:
    """The document of a file; empty if it is missing or damaged."""
    try:
        document = json.loads(read_own(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and _is_shallow(document, _MAX_DEPTH) else {}


def _is_shallow(value: Any, depth: int) -> bool:
    """Whether `value` has at most `depth` levels, so that it can be written again."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (depth > 0 and all(_is_shallow(item, depth - 1) for item in inner))
