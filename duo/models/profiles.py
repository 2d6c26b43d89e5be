"""Profiles: measurements of a pair of models on this machine, stored in the user's config directory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from duo.models.storage import MIB, config_dir, read_own
from duo.spec.policy_state import PolicyState, between, whole

_VERSION = 4
_MAX_BYTES = MIB  # a profile has a few KiB
_MAX_DEPTH = 8  # levels of lists and objects: a profile has six
_DIGITS = 6  # of the hash in a name: one pair has few profiles, and a wrong one is not used
_MAX_BYTES_OF_MODEL = 2**63
_MAX_NAME = 60  # characters of a model's name in that of a profile: a file name has at most 255 bytes


class TunedThreads(TypedDict):
    """Numbers of threads that `duo tune` has found: of each model alone, and of both at once."""

    target: int
    draft: int
    beside: Sequence[int]


class ModelKey(TypedDict):
    """A model in a key."""

    path: str
    bytes: int
    modified_ns: list[int]
    gpu_layers: int
    devices: list[str] | None
    servers: list[str]
    split: list[object]


class Key(TypedDict):
    """What a profile holds for."""

    models: list[ModelKey]
    devices: list[str]
    cores: int
    llama: list[str]
    options: list[object]


# What a profile says. What is read from a file is checked where it is used.
ProfileDocument = TypedDict(
    "ProfileDocument", {"for": Key, "policy": PolicyState, "threads": TunedThreads}, total=False
)


class Profile:
    """One file for the pair, the machine and the options in `key`. Nothing in it is required to run."""

    def __init__(self, key: Key) -> None:
        """Raises UsageError if there is no config directory."""
        self._key = {"version": _VERSION, **key}
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = profiles_dir() / f"{_name(key)}-{digest[:_DIGITS]}.json"

    def load(self) -> ProfileDocument:
        """The saved document; empty if the file is missing or damaged, in whatever way.

        Whether its values are plausible is checked where they are used.
        """
        document = _read(self.path)
        return document if document.get("for") == self._key else {}

    def save(self, document: ProfileDocument) -> None:
        """Save `document` atomically. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({**document, "for": self._key}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class KeyModel:
    """A model that a profile holds for."""

    path: str
    n_bytes: int
    n_gpu_layers: int  # negative: all
    has_devices: bool  # False: only the CPU is given
    is_remote: bool  # on RPC servers


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a profile holds for, as far as it is shown; every text is printable."""

    models: tuple[KeyModel, ...]  # the target, and the draft if there is one
    devices: tuple[str, ...]
    cores: int
    backends: tuple[str, ...]
    n_threads: tuple[int | None, int | None]  # -t and -td; None: not given

    @classmethod
    def read(cls, document: ProfileDocument) -> ProfileKey | None:
        """The key in a document; None if it is damaged."""
        try:
            key = document["for"]
            models, (target, draft) = _list(key["models"]), _list(key["options"])[:2]
            if not 1 <= len(models) <= 2:
                return None
            return cls(
                tuple(map(_read_model, models)),
                tuple(map(_text, _list(key["devices"]))),
                whole(key["cores"]),
                tuple(map(_text, _list(key["llama"])[2:-1])),
                (_whole_or_none(target), _whole_or_none(draft)),
            )
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class SavedProfile:
    """A profile in the config directory, of any pair."""

    path: Path
    modified_s: float  # seconds since 1970
    document: ProfileDocument  # as saved, with the key in "for"; empty if the file is damaged
    key: ProfileKey | None  # None: the file is damaged

    @property
    def name(self) -> str:
        """Target, draft and six hexadecimal digits."""
        return self.path.stem


def profiles_dir() -> Path:
    """Where profiles are. Raises UsageError if there is no config directory."""
    return config_dir() / "profiles"


def saved_profiles() -> list[SavedProfile]:
    """All profiles in the config directory, by name. Raises UsageError without one, and OSError."""
    found = []
    for path in sorted(profiles_dir().glob("*.json")):
        with suppress(FileNotFoundError):  # removed meanwhile
            document = _read(path)
            found.append(SavedProfile(path, path.lstat().st_mtime, document, ProfileKey.read(document)))
    return found


def _read_model(model: Any) -> KeyModel:
    """Raises KeyError, TypeError or ValueError if it is damaged."""
    return KeyModel(
        _text(model["path"]),
        int(between(whole(model["bytes"]), 0, _MAX_BYTES_OF_MODEL)),
        int(between(whole(model["gpu_layers"]), -_MAX_BYTES_OF_MODEL, _MAX_BYTES_OF_MODEL)),
        model["devices"] is None or bool(_list(model["devices"])),
        bool(_list(model["servers"])),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _text(value: Any) -> str:
    """`value` with ? for what cannot be printed. Raises TypeError if it is no text."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return "".join(character if character.isprintable() else "?" for character in value)


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else whole(value)


def _name(key: Key) -> str:
    """The models in `key` as a part of a file name."""
    paths = [model.get("path") for model in key.get("models") or () if isinstance(model, dict)]
    return "+".join(_slug(Path(path).stem) for path in paths if isinstance(path, str)) or "models"


def _slug(name: str) -> str:
    """`name` in characters that every file system and shell takes as they are, without the number of a part."""
    name = re.sub(r"-00001-of-\d{5}$", "", name)
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")[:_MAX_NAME] or "model"


def _read(path: Path) -> ProfileDocument:
    """The document of a file; empty if it is missing or damaged."""
    try:
        document = json.loads(read_own(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    is_usable = isinstance(document, dict) and _is_shallow(document, _MAX_DEPTH)
    return cast("ProfileDocument", document) if is_usable else {}


def _is_shallow(value: Any, depth: int) -> bool:
    """Whether `value` has at most `depth` levels, so that it can be written again."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (depth > 0 and all(_is_shallow(item, depth - 1) for item in inner))
