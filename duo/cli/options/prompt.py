"""The prompt, and what stops a text."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from duo.cli.options.declare import MAIN, PROMPT, option
from duo.cli.options.drafting import DraftOpt
from duo.errors import PromptError, UsageError
from duo.models.storage import MIB, read_at_most, read_path


# fmt: off
@dataclass(frozen=True)
class LimitOptions:
    """Maximum numbers of tokens."""

    predict: Annotated[int, option(
        "-n", "--predict", "--n-predict", panel=MAIN, metavar="N", env="LLAMA_ARG_N_PREDICT",
        help="Maximum number of tokens to generate; -1: until the end of the text.")] = -1
    draft: DraftOpt = None


@dataclass(frozen=True)
class StopOptions:
    """What stops a text."""

    reverse_prompt: Annotated[list[str] | None, option(
        "-r", "--reverse-prompt", panel=PROMPT, metavar="TEXT", help="Stop before this text; may be repeated.")] = None
    ignore_eos: Annotated[bool, option(
        "--ignore-eos", panel=PROMPT, help="Ignore end-of-text tokens and continue.")] = False


@dataclass(frozen=True)
class PromptOptions:
    """The prompt of a run."""

    prompt: Annotated[str | None, option("-p", "--prompt", panel=MAIN, metavar="TEXT", help="Prompt.")] = None
    file: Annotated[str | None, option(
        "-f", "--file", panel=MAIN, metavar="FILE", help="File with the prompt; -: stdin.")] = None


@dataclass(frozen=True)
class TemplateOptions:
    """How the prompt is processed."""

    chat: Annotated[bool, option(
        "--chat", panel=PROMPT, help="Format the prompt with the model's chat template.")] = False
    system_prompt: Annotated[str | None, option(
        "-sys", "--system-prompt", panel=PROMPT, metavar="TEXT", help="System prompt; implies --chat.")] = None
    escape: Annotated[bool, option(
        "--escape/--no-escape", "-e", panel=PROMPT,
        help=r"Process escapes in prompts: \n, \t, \", \\ and \xHH.")] = True


_MAX_PROMPT = 64 * MIB  # more than the tokens of the largest contexts
MAX_GRAMMAR = MIB

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
    """The prompt of -p or -f, None if neither is given. Raises UsageError, or PromptError if it is empty or not text.

    As in llama.cpp, one newline at the end of a file is removed, and escape sequences are processed if `escape`.
    """
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
        return _unescape(data).decode() if escape else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise PromptError(f"{name} is not valid UTF-8: byte 0x{byte:02x} at offset {error.start}") from None


def _unescape(data: bytes) -> bytes:
    r"""Process \n, \r, \t, \', \", \\ and \xHH, a byte; other backslashes stay (llama.cpp, string_process_escapes)."""

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code[1:].decode()) if code[:1] == b"x" else _ESCAPES.get(code, code)

    return _ESCAPE.sub(replace, data)


def _read_stdin(most: int) -> bytes:
    return read_at_most(sys.stdin.buffer, most) if sys.stdin is not None else b""  # None: closed by the parent process


def read_file(file: str, *, escape: bool, most: int = _MAX_PROMPT) -> tuple[str, str]:
    """Name and text of a file of at most `most` bytes, or of standard input for `-`. Raises PromptError."""
    name = "standard input" if file == "-" else file
    try:
        data = _read_stdin(most) if file == "-" else read_path(Path(file), most)
    except FileNotFoundError:
        raise PromptError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:  # a name with a NUL, or a closed standard input
        raise PromptError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    return name, _decode(data.removesuffix(b"\n"), name, escape=escape)
