"""API keys and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from duo.errors import UsageError
from duo.models.storage import MIB, read_path


def api_keys(keys: Sequence[str] | None, file: Path | None) -> list[str]:
    """All keys; an argument may have several, separated by commas, as in llama-server. Raises UsageError."""
    found = [part.strip() for key in keys or () for part in key.split(",")]
    if file is not None:
        found += _lines(file, "--api-key-file")
    if (keys or file) and not all(found or [""]):
        raise UsageError("an API key must not be empty: omit --api-key if clients need none")
    if not all(key.isascii() and key.isprintable() for key in found):
        raise UsageError("an API key has characters that are not allowed in HTTP headers")
    return found


def back_token(token: str | None, file: Path | None, option: str = "--back-token") -> str:
    """The token of remote drafts; empty if there is none. Raises UsageError."""
    if token is not None and file is not None:
        raise UsageError(f"{option} and {option}-file both give the token: use only one")
    if file is not None:
        lines = _lines(file, f"{option}-file")
        token = lines[0] if lines else ""
    if token == "":
        raise UsageError(f"the token must not be empty: omit {option} if none is needed")
    if token is not None and (len(token) > 256 or not token.isprintable()):
        raise UsageError(f"{option} must have at most 256 characters, all printable")
    return token or ""


def _lines(file: Path, option: str) -> list[str]:
    try:
        lines = read_path(file, MIB).decode().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {file}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    return [line.strip() for line in lines if line.strip()]
