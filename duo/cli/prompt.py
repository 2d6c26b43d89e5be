"""The prompt: where it comes from and how llama.cpp reads it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from duo.errors import PromptError, UsageError

# What `duo` asks the demo pair when it is given nothing else: the question of test_prompt.txt.
DEMO_SYSTEM = "You are a helpful, respectful and honest assistant."
DEMO_QUESTION = "Illustrate the difference between concurrency and parallelism in python."

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def read_prompt(text: str | None, file: str | None, *, escape: bool) -> str | None:
    """The prompt from -p or -f, None if neither was given.

    As llama.cpp does, one newline at the end of a file is dropped, and escapes are processed unless turned off.
    Raises UsageError for both at once, PromptError for what is empty or not text.
    """
    if text is not None and file is not None:
        raise UsageError("-p and -f both give a prompt: leave one out")
    if file is not None:
        text = _read_file(file)
    if text is None:
        return None
    text = unescape(text) if escape else text
    if not text:
        raise PromptError(f"the prompt in {file} is empty" if file else "the prompt is empty")
    return text


def unescape(text: str) -> str:
    r"""Process \n, \r, \t, \', \", \\ and \xHH; other backslashes stay (llama.cpp, string_process_escapes)."""

    def replace(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]

    return _ESCAPE.sub(replace, text)


def _read_file(file: str) -> str:
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError:
        raise PromptError(f"{file}: no such file") from None
    except OSError as error:
        raise PromptError(f"{file}: {error.strerror}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{name} is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None
    return text.removesuffix("\n")
