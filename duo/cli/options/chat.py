"""The options of `duo chat`, apart from it so that --help does not wait for what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.options.declare import OUTPUT, PROMPT, HelpOpt, option
from duo.cli.options.output import Color
from duo.cli.options.sampling import RANDOM_SEED, SAMPLING

_SERVER = "Server"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of `duo chat`; what is None is left to the server."""

    url: Annotated[
        str, typer.Argument(metavar="URL", help="An OpenAI-compatible server, with or without /v1 at the end.")
    ] = "http://127.0.0.1:5555"
    model: Annotated[
        str | None,
        option("--model", panel=_SERVER, metavar="NAME", show_default="the server's first",
                help="Which of the server's models."),
    ] = None  # fmt: skip
    api_key: Annotated[
        str | None,
        option("--api-key", panel=_SERVER, metavar="KEY", env=["LLAMA_API_KEY", "OPENAI_API_KEY"],
                help="The server's key; better in $LLAMA_API_KEY or $OPENAI_API_KEY, where no other user sees it."),
    ] = None  # fmt: skip
    api_key_file: Annotated[
        Path | None,
        option("--api-key-file", panel=_SERVER, metavar="FILE",
                help="A file whose first line with text is the key; it goes before a key given otherwise."),
    ] = None  # fmt: skip
    system_prompt: Annotated[
        str | None, option("-sys", "--system-prompt", panel=PROMPT, metavar="TEXT", help="What the model is to be.")
    ] = None
    predict: Annotated[
        int | None,
        option("-n", "--predict", "--n-predict", panel=PROMPT, metavar="N", min=-1, show_default="the server's",
                help="Most tokens of an answer; -1 is to the end."),
    ] = None  # fmt: skip
    temp: Annotated[
        float | None,
        option("--temp", "--temperature", panel=SAMPLING, metavar="T", show_default="the server's",
                help="Temperature; 0 always takes the most likely token."),
    ] = None  # fmt: skip
    seed: Annotated[
        int | None,
        option("-s", "--seed", panel=SAMPLING, metavar="N", min=RANDOM_SEED,
                show_default="the server's", help="Same seed, same text; -1 takes a new one."),
    ] = None  # fmt: skip
    color: Annotated[
        Color, option("--color", panel=OUTPUT, help="Show what the draft guessed, if the server tells it, in green.")
    ] = Color.AUTO
    help: HelpOpt = False
