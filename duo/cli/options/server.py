"""The options of commands that listen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

from duo.cli.options import declare

SERVER = "Server"
BACKS = "Drafts on other machines"
option = partial(declare.option, panel=SERVER)


class PrintChoice(str, Enum):
    """What a lead shows of the texts it writes."""

    ACCEPTED = "accepted"
    ALL = "all"
    NONE = "none"
    AUTO = "auto"


# fmt: off
@dataclass(frozen=True)
class ServerOptions:
    """Where a lead listens, for whom, and what it shows."""

    host: Annotated[str, option(
        "--host", metavar="ADDRESS", env="LLAMA_ARG_HOST", help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, option(
        "--port", metavar="N", min=0, max=65535, env="LLAMA_ARG_PORT",
        help="The port; 0 takes any that is free, and says which.")] = 5555
    api_key: Annotated[list[str] | None, option(
        "--api-key", metavar="KEY", env="LLAMA_API_KEY",
        help="What clients must know; may be repeated. Needed for any address but this machine's own.")] = None
    api_key_file: Annotated[Path | None, option(
        "--api-key-file", metavar="FILE", help="The same from a file, one in each line.")] = None
    queue: Annotated[int, option(
        "--queue", metavar="N", min=0, help="Most requests that wait; more are turned away.")] = 64
    alias: Annotated[str | None, option(
        "-a", "--alias", metavar="NAME", env="LLAMA_ARG_ALIAS", show_default="the file's name",
        help="The model's name for clients.")] = None
    print: Annotated[PrintChoice, option(
        "--print",
        help="Show the texts: with accepted guesses marked, with all guesses, or not. auto: accepted, on a terminal.",
    )] = PrintChoice.AUTO
    allowed_host: Annotated[list[str] | None, option(
        "--allowed-host", metavar="NAME",
        help="A name that clients call this server by, behind a proxy; may be repeated.")] = None
    cors_origin: Annotated[list[str] | None, option(
        "--cors-origin", metavar="ORIGIN",
        help="A web site whose pages may ask, such as https://chat.example; may be repeated.")] = None


@dataclass(frozen=True)
class BackPortOptions:
    """Where drafts on other machines join a run."""

    back_port: Annotated[int | None, option(
        "--back-port", panel=BACKS, metavar="N", min=0, max=65535,
        help="Take drafts from duo back on this port.")] = None
    back_host: Annotated[str, option(
        "--back-host", panel=BACKS, metavar="ADDRESS", help="The address for that; needs --back-token.")] = "127.0.0.1"


@dataclass(frozen=True)
class BackTokenOptions:
    """What drafts on other machines must know."""

    back_token: Annotated[str | None, option(
        "--back-token", panel=BACKS, metavar="TOKEN", env="DUO_BACK_TOKEN", help="What backs must know.")] = None
    back_token_file: Annotated[Path | None, option(
        "--back-token-file", panel=BACKS, metavar="FILE", help="The same from a file.")] = None
