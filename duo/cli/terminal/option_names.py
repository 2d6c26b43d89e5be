"""Options instead of parameters in messages."""

from __future__ import annotations

import re


def with_options(text: str, parameter: str = "") -> str:
    """A message, with options instead of parameters: those of an engine in it, and `parameter`, its beginning."""
    from duo.cli.commands import COMMANDS  # noqa: PLC0415 - rarely needed
    from duo.cli.options.by_command import RunOptions  # noqa: PLC0415
    from duo.config.option import declared  # noqa: PLC0415

    options = [*(command.options for command in COMMANDS.values()), RunOptions()]
    flags = {one.name: one.option.flag for config in options for one in declared(config) if one.option.flags}
    engine = {one.name for one in declared(RunOptions().engine) if "_" in one.name and one.option.flags}
    anywhere = {name: flags[name] for name in engine} | {"profile=False": "--no-profile"}
    named = re.compile(rf"(?<![\w./-])({'|'.join(anywhere)})(?![\w./-])")
    rest = named.sub(lambda match: anywhere[match[1]], text.removeprefix(parameter))
    return flags.get(parameter, parameter) + rest
