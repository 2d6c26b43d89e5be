"""The options of `duo chat`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duo.cli.options.declare import OUTPUT, PROMPT, HelpOpt, option
from duo.cli.options.output import Color
from duo.cli.options.sampling import RANDOM_SEED, SAMPLING
from duo.cli.options.server import SERVER


# fmt: off
@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of `duo chat`; None: as the server decides."""

    url: Annotated[str, typer.Argument(
        metavar="URL", help="Address of an OpenAI-compatible server, with or without /v1.")] = "http://127.0.0.1:5555"
    model: Annotated[str | None, option(
        "--model", panel=SERVER, metavar="NAME", show_default="the server's first", help="Name of the model.")] = None
    api_key: Annotated[str | None, option(
        "--api-key", panel=SERVER, metavar="KEY", env=["LLAMA_API_KEY", "OPENAI_API_KEY"],
        help="API key; safer in $LLAMA_API_KEY or $OPENAI_API_KEY, which other users cannot see.")] = None
    api_key_file: Annotated[Path | None, option(
        "--api-key-file", panel=SERVER, metavar="FILE",
        help="File whose first non-empty line is the API key; overrides --api-key.")] = None
    system_prompt: Annotated[str | None, option(
        "-sys", "--system-prompt", panel=PROMPT, metavar="TEXT", help="System prompt.")] = None
    predict: Annotated[int | None, option(
        "-n", "--predict", "--n-predict", panel=PROMPT, metavar="N", min=-1, show_default="the server's",
        help="Maximum number of tokens of an answer; -1: no limit.")] = None
    temp: Annotated[float | None, option(
        "--temp", "--temperature", panel=SAMPLING, metavar="T", show_default="the server's",
        help="Temperature; 0: always the most likely token.")] = None
    seed: Annotated[int | None, option(
        "-s", "--seed", panel=SAMPLING, metavar="N", min=RANDOM_SEED, show_default="the server's",
        help="Random seed; -1: a new one for each answer.")] = None
    color: Annotated[Color, option(
        "--color", panel=OUTPUT,
        help="Show accepted tokens in green (of the draft) or cyan (of the lookup), if the server reports them.",
    )] = "auto"
    help: HelpOpt = False
