"""`duo chat`, and `duo -cnv`: a chat with a model in this process or on a server, on a terminal or in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from duo.cli.commands.options import ChatOptions, RunOptions
from duo.cli.options import api_keys, read_argument, read_prompt
from duo.cli.terminal.console import note, send_log
from duo.cli.terminal.writer import Printer, marks_tokens
from duo.errors import UsageError
from duo.speculation.types import Origin

if TYPE_CHECKING:
    from duo.cli.chat_client import Server

_LEAD = "http://127.0.0.1:5555"  # the default address of `duo lead`
Message = dict[str, str]
# Shows a piece of text, of which as many characters were candidates, of the draft or of the lookup. None: the text is
# reasoning, which is not part of the answer.
Show = Callable[[str, int, Origin | None], None]


@dataclass(slots=True)
class Answer:
    """An answer so far."""

    text: str = ""
    figures: tuple[int, float, int, int] = (0, 0.0, 0, 0)  # tokens, seconds, verified, accepted; 0: unknown
    prompt: tuple[int, int] = (0, 0)  # tokens of the conversation, and those of them that were in the KV cache
    remark: str = ""  # why it is empty or incomplete


class ChatBackend(Protocol):
    """What a chat talks to: a server, or an engine in this process."""

    def greeting(self) -> str:
        """What it is, in words. Raises DuoError if it cannot be reached."""

    def answer(self, messages: list[Message], answer: Answer, show: Show, attempt: int = 0) -> None:
        """Generate an answer, and add it to `answer`, showing each piece.

        `attempt`: how often the same messages were answered before, for another seed. Raises DuoError. After
        KeyboardInterrupt, which ends the answer, `answer` has what was shown, and its figures if they are known.
        """


def limit_remark(n_predict: int) -> str:
    """That -n ended an answer."""
    return f"the answer is not complete: -n is {n_predict}"


def describe(*answers: Answer) -> str:
    """The statistics of answers, added up; empty if unknown."""
    n_tokens, seconds, n_verified, n_accepted = map(sum, zip(*(answer.figures for answer in answers), strict=True))
    words = [
        f"{n_tokens} tokens" if n_tokens else "",
        f"{n_tokens / seconds:.1f} tokens/s" if n_tokens and seconds else "",
        f"{n_accepted} of {n_verified} candidates accepted" if n_verified else "",
    ]
    return ", ".join(filter(None, words))


def beginning(system: str | None) -> list[Message]:
    """The messages before the first question."""
    return [{"role": "system", "content": system}] if system else []


def chat(options: ChatOptions) -> int:
    """Chat with a model in this process or on a server. Returns the exit status. Raises DuoError or BrokenPipeError."""
    local = options.only_local()
    server = _server(options) if options.url or not (local or options.names_target) else None
    if server is None:
        if options.given & {"api_key", "api_key_file"}:
            raise UsageError("--api-key and --api-key-file are for a server: add its URL, or leave them out")
        return converse(options)
    if local:
        raise UsageError(f"{local[0]} is for a model in this process: it has no effect on a server")
    options.config(escape=options.escape)  # checks its values
    return _talk(server, options, _first(options))


def _server(options: ChatOptions) -> Server | None:
    """The server of the URL; without one a lead on this machine, if it answers. Raises UsageError."""
    from duo.cli.chat_client import Server  # noqa: PLC0415 - a chat in this process needs no network

    file, key = options.api_key_file, options.api_key
    if file is not None and not (key := next(iter(api_keys(None, file)), None)):
        raise UsageError(f"--api-key-file {file}: no key in this file")
    model = read_argument(str(options.model), "-m", escape=False) if "model" in options.given else None
    marks, settings = marks_tokens(options.color), options.settings()
    server = Server(options.url or _LEAD, key=key, model=model, settings=settings, marks=marks)
    if not options.url:
        if not server.is_there():
            return None
        note(f"no model given (-m, -hf): using the server at {_LEAD}")
    return server


def converse(options: RunOptions | ChatOptions) -> int:
    """Chat with a model in this process. Returns the exit status. Raises DuoError."""
    if isinstance(options, RunOptions):
        options.check_model()
        if options.live or options.json or options.trace or options.display_prompt:
            words = "are for a single text, -cnv for a conversation"
            raise UsageError(f"--live, --json, --trace and --display-prompt {words}")
    send_log(options, hidden=() if options.engine.back_port is not None else ("duo.remote",))
    from duo.cli.chat_model import LocalModel  # noqa: PLC0415 - a client needs no llama.cpp
    from duo.cli.load import loaded  # noqa: PLC0415

    config, first = options.config(escape=options.escape), _first(options)
    with loaded(options, config.stop.n_predict) as engine:
        return _talk(LocalModel(engine, config), options, first)


def _talk(backend: ChatBackend, options: RunOptions | ChatOptions, first: str | None) -> int:
    """Chat on a terminal, or print the answer to `first`. Returns the exit status."""
    system = options.system_prompt and read_argument(options.system_prompt, "-sys", escape=options.escape)
    printer = Printer(marks=marks_tokens(options.color))
    if _is_interactive():
        from duo.cli.conversation import Talk  # noqa: PLC0415 - slow to import

        return Talk(backend, system, printer).run(first)
    answer = Answer()
    try:
        backend.answer([*beginning(system), {"role": "user", "content": first or ""}], answer, printer.show)
    finally:
        if sys.stdout.isatty():
            printer.end_answer()
        printer.end()
    if answer.remark:
        note(answer.remark)
    return 0


def _is_interactive() -> bool:
    """Whether somebody types: standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def _first(options: RunOptions | ChatOptions) -> str | None:
    """The first message: -p or -f, otherwise standard input, unless it is a terminal. Raises PromptError."""
    is_piped = options.prompt is None and options.file is None and not _is_interactive()
    return read_prompt(options.prompt, "-" if is_piped else options.file, escape=options.escape and not is_piped)
