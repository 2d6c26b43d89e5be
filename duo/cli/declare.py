"""How an option of a command is declared."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(*names: str, panel: str, help: str, env: str | list[str] | None = None, **more: Any) -> Any:  # noqa: A002
    """An option with these names, in a panel of --help, that an environment variable can set."""
    return typer.Option(*names, rich_help_panel=panel, help=help, envvar=env, show_envvar=False, **more)


# For a process that another duo has started.
UntilEofOpt = Annotated[bool, typer.Option("--until-eof", hidden=True, help="End at once when standard input does.")]
