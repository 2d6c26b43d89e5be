"""Profiles: measurements of a pair of models on this machine, stored in the user's config directory."""

import hashlib
import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import msgspec

from duo.models.storage import MIB, config_dir, open_own, read_at_most
from duo.speculation.draft_estimates import DraftState
from duo.speculation.target_costs import TargetState

log = logging.getLogger("duo.models")

_VERSION = 5
_MAX_BYTES = MIB  # a profile has a few KiB
_DIGITS = 6  # of the hash in a name: one pair has few profiles, and a wrong one is not used
_MAX_NAME = 60  # characters of a model's name in that of a profile: a file name has at most 255 bytes


_Threads = Annotated[int, msgspec.Meta(ge=1)]


class TunedThreads(TypedDict):
    """Numbers of threads that `duo tune` has found: of each model alone, and of both at once."""

    target: _Threads
    draft: _Threads
    concurrent: tuple[_Threads, _Threads]


class KeyModel(msgspec.Struct, frozen=True):
    """A model that a profile holds for."""

    path: str
    n_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = msgspec.field(name="bytes")
    n_gpu_layers: int = msgspec.field(name="gpu_layers")  # negative: all
    devices: tuple[str, ...] | None  # None: not given
    servers: tuple[str, ...]  # RPC servers
    modified_ns: list[int] = []
    split: list[Any] = []


class Key(msgspec.Struct, frozen=True):
    """What a profile holds for."""

    models: Annotated[tuple[KeyModel, ...], msgspec.Meta(min_length=1, max_length=2)]  # the target, and a draft
    devices: tuple[str, ...]
    cores: int
    llama: tuple[str, ...]  # two versions, the back ends, system information
    options: tuple[Any, ...]  # -t, -td (None: not given) and others


# What a profile says: of a target, or of a draft with its target. What is read is checked where it is used.
ProfileDocument = TypedDict(
    "ProfileDocument",
    {"for": dict[str, Any], "target": TargetState, "draft": DraftState, "threads": TunedThreads},
    total=False,
)


def kept_threads(document: ProfileDocument) -> ProfileDocument:
    """The numbers of threads in a document, as {"threads": …}; empty if there are none or they are damaged."""
    try:
        return {"threads": msgspec.convert(document.get("threads"), TunedThreads)}
    except ValueError:  # or half a character, which is not UTF-8
        return {}


class Profile:
    """One file for the pair, the machine and the options in `key`. Nothing in it is required to run."""

    def __init__(self, key: Key) -> None:
        """Raises UsageError if there is no config directory."""
        self._key, self.path = _place(key, _VERSION)
        self._earlier = _place(key, _VERSION - 1)[1]  # the file of an earlier release

    def load(self) -> ProfileDocument:
        """The saved document, whose values are checked where they are used; empty if it is missing or damaged."""
        if self._earlier.is_file():
            log.info("%s is of an earlier release: what it says is measured again", self._earlier.name)
            threads = kept_threads(_read(self._earlier))
            with suppress(OSError):
                self._earlier.unlink()
                if threads and not self.path.exists():
                    self.save(threads)
        document = _read(self.path)
        return document if document.get("for") == self._key else {}

    def save(self, document: ProfileDocument) -> None:
        """Save `document` atomically. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({**document, "for": self._key}), encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SavedProfile:
    """A profile in the config directory, of any pair."""

    path: Path
    modified_s: float  # seconds since 1970
    document: ProfileDocument  # as saved, with the key in "for"; empty if the file is damaged
    key: Key | None  # None: the file is damaged

    @property
    def name(self) -> str:
        """Target, draft and six hexadecimal digits."""
        return self.path.stem


def _place(key: Key, version: int) -> tuple[dict[str, Any], Path]:
    """What a profile of this version holds for, as JSON, and its file."""
    written = json.dumps({"version": version, **msgspec.to_builtins(key)}, sort_keys=True)
    digest = hashlib.sha256(written.encode()).hexdigest()
    name = "+".join(_slug(Path(model.path).stem) for model in key.models)
    return json.loads(written), profiles_dir() / f"{name}-{digest[:_DIGITS]}.json"


def profiles_dir() -> Path:
    """Where profiles are. Raises UsageError if there is no config directory."""
    return config_dir() / "profiles"


def saved_profiles() -> list[SavedProfile]:
    """All profiles in the config directory, by name. Raises UsageError without one, and OSError."""
    found = []
    for path in sorted(profiles_dir().glob("*.json")):
        with suppress(FileNotFoundError):  # removed meanwhile
            document, key = _read(path), None
            with suppress(ValueError):
                key = msgspec.convert(document.get("for"), Key)
            found.append(SavedProfile(path, path.lstat().st_mtime, document, key))
    return found


def _slug(name: str) -> str:
    """`name` in characters that every file system and shell takes as they are, without the number of a part."""
    name = re.sub(r"-00001-of-\d{5}$", "", name)
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")[:_MAX_NAME] or "model"


def _read(path: Path) -> ProfileDocument:
    """The document of a file; empty if it is missing or damaged."""
    try:
        with open_own(path) as file:
            document = json.loads(read_at_most(file, _MAX_BYTES))
        json.dumps(document)  # it can be written again, however deep it is
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("ProfileDocument", document) if isinstance(document, dict) else {}
