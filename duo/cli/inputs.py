"""What options name: texts, files with texts, API keys and tokens."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from duo.errors import PromptError, UsageError
from duo.models.storage import MIB, read_at_most, read_path

_MAX_PROMPT = 64 * MIB  # more than the tokens of the largest contexts

# Prompt of the demo pair if none is given: most of the answer is in the prompt.
DEMO_PROMPT = """\
Rewrite this letter so that it is addressed to Mr Brown instead of Mrs Green:

Dear Mrs Green,

Thank you for your letter of 3 May. We are pleased to tell you that your order was sent this morning and will arrive \
on Friday. It contains two garden chairs, one round table and a blue parasol. The table needs to be assembled: the \
screws and the tools are in the small box under the table top. If a part is missing or damaged, please keep the \
packaging and call us between nine and five. We will send you a replacement within three days.

We hope that you will enjoy many sunny hours in your garden.

Yours sincerely,
Anna White"""

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def read_prompt(text: str | None, file: str | None, *, escape: bool) -> str | None:
    """The prompt of -p or -f; None if neither is given. Raises UsageError, or PromptError if it is empty or no text."""
    if text is not None and file is not None:
        raise UsageError("-p and -f both give a prompt: use only one")
    if file is not None:
        name, prompt = read_file(file, escape=escape)
    elif text is not None:
        name, prompt = "the prompt", read_argument(text, "the prompt", escape=escape)
    else:
        return None
    if not prompt:
        raise PromptError(f"{name} is empty")
    return prompt


def read_argument(text: str, name: str, *, escape: bool) -> str:
    """An argument as text, its escape sequences processed if `escape`. Raises PromptError if it is not UTF-8."""
    return _decode(text.encode("utf-8", "surrogateescape"), name, escape=escape)


def _decode(data: bytes, name: str, *, escape: bool) -> str:
    try:
        text = data.decode()  # first, so that the offset in an error is one in the input
        return _ESCAPE.sub(_unescaped, data).decode() if escape else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise PromptError(f"{name} is not valid UTF-8: byte 0x{byte:02x} at offset {error.start}") from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    r"""What \n, \r, \t, \', \", \\ or \xHH, a byte, stands for (llama.cpp, string_process_escapes)."""
    code = match[1]
    return bytes.fromhex(code[1:].decode()) if code[:1] == b"x" else _ESCAPES.get(code, code)


def read_file(file: str, *, escape: bool = False, limit: int = _MAX_PROMPT) -> tuple[str, str]:
    """Name and text of a file, or stdin for `-`, without a newline at its end, as in llama.cpp. Raises PromptError."""
    name = "standard input" if file == "-" else file
    try:
        if file != "-":
            data = read_path(Path(file), limit)
        else:  # None: closed by the parent process
            data = read_at_most(sys.stdin.buffer, limit) if sys.stdin is not None else b""
    except (OSError, ValueError) as error:  # a name with a NUL, or a closed standard input
        raise PromptError(f"{name}: {_reason(error)}") from error
    return name, _decode(data.removesuffix(b"\n"), name, escape=escape)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def api_keys(keys: Sequence[str] | None, file: Path | None) -> list[str]:
    """All keys; an argument may have several, separated by commas, as in llama-server. Raises UsageError."""
    found = [part.strip() for key in keys or () for part in key.split(",")]
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
        token = next(iter(_lines(file, f"{option}-file")), "")
    if token is None:
        return ""
    if not 0 < len(token) <= 256 or not token.isprintable():
        raise UsageError(f"{option}: a token must not be empty, and has at most 256 characters, all printable")
    return token


def _lines(file: Path | None, option: str) -> list[str]:
    """The lines that are not empty; none without a file."""
    try:
        lines = read_path(file, MIB).decode().splitlines() if file is not None else []
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {file}: {_reason(error)}") from None
    return [line.strip() for line in lines if line.strip()]
