"""The options of a server, and for remote drafts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from duo.cli.options import declare

SERVER = "Server"
BACKS = "Remote drafts"
_MAX_QUEUE = 10_000
option = partial(declare.option, panel=SERVER)


PrintChoice = Literal["none", "accepted", "all"]


# fmt: off
@dataclass(frozen=True)
class ServerOptions:
    """Where a lead listens, which clients it accepts, and what it prints."""

    host: Annotated[str, option(
        "--host", metavar="ADDRESS", env="LLAMA_ARG_HOST", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, option(
        "--port", metavar="N", min=0, max=65535, env="LLAMA_ARG_PORT",
        help="Port to listen on; 0: any free port, which is printed.")] = 5555
    api_key: Annotated[list[str] | None, option(
        "--api-key", metavar="KEY", env="LLAMA_API_KEY",
        help="API key that clients must send; may be repeated. Required unless --host is a loopback address.")] = None
    api_key_file: Annotated[Path | None, option(
        "--api-key-file", metavar="FILE", help="File with API keys, one per line.")] = None
    queue: Annotated[int, option(
        "--queue", metavar="N", min=0, max=_MAX_QUEUE,
        help="Maximum number of waiting requests, which are kept in memory; further ones are rejected.")] = 64
    alias: Annotated[str | None, option(
        "-a", "--alias", metavar="NAME", env="LLAMA_ARG_ALIAS", show_default="the file's name",
        help="Name of the model in the API.")] = None
    print: Annotated[PrintChoice, option(
        "--print",
        help="Print clients' texts on stdout. accepted: the texts, with accepted candidates coloured in a terminal; "
        "all: also the rejected candidates.",
    )] = "none"
    allowed_host: Annotated[list[str] | None, option(
        "--allowed-host", metavar="NAME",
        help="Further host name that clients use for this server, such as that of a proxy; may be repeated.")] = None
    cors_origin: Annotated[list[str] | None, option(
        "--cors-origin", metavar="ORIGIN",
        help="Web site whose pages may send requests, such as https://chat.example; may be repeated.")] = None
    page: Annotated[bool, option(
        "--page/--no-page", env=["LLAMA_ARG_UI", "LLAMA_ARG_WEBUI"], help="Serve a page for browsers, at /.")] = True


@dataclass(frozen=True)
class BackPortOptions:
    """Where remote drafts connect to a run."""

    back_port: Annotated[int | None, option(
        "--back-port", panel=BACKS, metavar="N", min=0, max=65535,
        help="Port to accept remote drafts on (duo back).")] = None
    back_host: Annotated[str, option(
        "--back-host", panel=BACKS, metavar="ADDRESS",
        help="Address for --back-port. A token is required unless it is a loopback address.")] = "127.0.0.1"


@dataclass(frozen=True)
class BackTokenOptions:
    """What remote drafts must send."""

    back_token: Annotated[str | None, option(
        "--back-token", panel=BACKS, metavar="TOKEN", env="DUO_BACK_TOKEN",
        help="Token that remote drafts must send.")] = None
    back_token_file: Annotated[Path | None, option(
        "--back-token-file", panel=BACKS, metavar="FILE", help="File with the token.")] = None
