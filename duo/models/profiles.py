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
from duo.spec.costs import Calibration
from duo.spec.policy import Policy

_VERSION = 1


def config_dir() -> Path:
    """Where duo keeps what it learned: $DUO_CONFIG, $XDG_CONFIG_HOME/duo or the system's usual place.

    Raises UsageError for a $DUO_CONFIG that is no absolute path, and when there is no home directory.
    """
    if named := named_folder("DUO_CONFIG", "XDG_CONFIG_HOME"):
        return named
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UsageError("there is no home directory to keep profiles in: set DUO_CONFIG or --no-profile") from error
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
            part.write_text(json.dumps({"for": self._key, **document}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def remembered(policy: Policy, kept: dict[str, Any], mode: str) -> dict[str, Any]:
    """`kept` with what `policy` has learned. How often guesses are right is kept for each `mode` of sampling."""
    state = policy.state()
    return kept | {"policy": state, "acceptance": _acceptance(kept) | {mode: state["acceptance"]}}


def _acceptance(kept: dict[str, Any]) -> dict[str, Any]:
    found = kept.get("acceptance")
    return found if isinstance(found, dict) else {}


def restore(policy: Policy, kept: dict[str, Any], mode: str) -> None:
    """Let `policy` begin with what was learned before. A damaged profile counts as none."""
    if not (learned := kept.get("policy")):
        return
    if isinstance(learned, dict) and "acceptance" in kept:
        learned = learned | {"acceptance": _acceptance(kept).get(mode) or Calibration().state()}
    fresh = Policy(policy.n_max, policy.n_ahead)
    try:
        fresh.restore(learned)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return
    policy.restore(learned)
