"""The options of commands that listen."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

from duo.cli.declare import option

SERVER = "Server"
BACKS = "Drafts on other machines"


class PrintChoice(str, Enum):
    """What a lead shows of the texts it writes."""

    ACCEPTED = "accepted"
    ALL = "all"
    NONE = "none"
    AUTO = "auto"


HostOpt = Annotated[
    str, option("--host", panel=SERVER, metavar="ADDRESS", env="LLAMA_ARG_HOST", help="The address to listen on.")
]
PortOpt = Annotated[
    int,
    option("--port", panel=SERVER, metavar="N", min=0, max=65535, env="LLAMA_ARG_PORT",
           help="The port; 0 takes any that is free, and says which."),
]  # fmt: skip
ApiKeyOpt = Annotated[
    list[str] | None,
    option("--api-key", panel=SERVER, metavar="KEY", env="LLAMA_API_KEY",
           help="What clients must know; may be repeated. Needed for any address but this machine's own."),
]  # fmt: skip
ApiKeyFileOpt = Annotated[
    Path | None, option("--api-key-file", panel=SERVER, metavar="FILE", help="The same from a file, one in each line.")
]
QueueOpt = Annotated[
    int, option("--queue", panel=SERVER, metavar="N", min=0, help="Most requests that wait; more are turned away.")
]
AliasOpt = Annotated[
    str | None,
    option("-a", "--alias", panel=SERVER, metavar="NAME", env="LLAMA_ARG_ALIAS", show_default="the file's name",
           help="The model's name for clients."),
]  # fmt: skip
AllowedHostOpt = Annotated[
    list[str] | None,
    option("--allowed-host", panel=SERVER, metavar="NAME",
           help="A name that clients call this server by, behind a proxy; may be repeated."),
]  # fmt: skip
CorsOpt = Annotated[
    list[str] | None,
    option("--cors-origin", panel=SERVER, metavar="ORIGIN",
           help="A web site whose pages may ask, such as https://chat.example; may be repeated."),
]  # fmt: skip
PrintOpt = Annotated[
    PrintChoice,
    option("--print", panel=SERVER,
           help="Show the texts: with accepted guesses marked, with all guesses, or not. auto: accepted, on a "
           "terminal."),
]  # fmt: skip

BackPortOpt = Annotated[
    int | None,
    option("--back-port", panel=BACKS, metavar="N", min=0, max=65535, help="Take drafts from duo back on this port."),
]
BackHostOpt = Annotated[
    str, option("--back-host", panel=BACKS, metavar="ADDRESS", help="The address for that; needs --back-token.")
]
BackTokenOpt = Annotated[
    str | None,
    option("--back-token", panel=BACKS, metavar="TOKEN", env="DUO_BACK_TOKEN", help="What backs must know."),
]
BackTokenFileOpt = Annotated[
    Path | None, option("--back-token-file", panel=BACKS, metavar="FILE", help="The same from a file.")
]
