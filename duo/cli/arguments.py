"""Options are matched whole, those of llama.cpp are known, and for any other the nearest names are said."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from duo.config.option import Option, nearest
from duo.errors import UsageError

_ATTACHED = re.compile(r"(-[A-Za-z]+)(-?\d+(?:\.\d+)?)")  # -n512


class WholeNames:
    """A command, or a group of them, whose options are matched whole: -cnv is not -c nv."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Parse the arguments; for Typer. Raises UsageError."""
        if not context.resilient_parsing:  # else the shell asks for completions
            args = ArgumentReader(self, context).read(args)
        parsed: list[str] = super().parse_args(context, args)  # type: ignore[misc]
        return parsed


class Command(WholeNames, TyperCommand):
    """A command."""


class Commands(WholeNames, TyperGroup):
    """A group of commands, with options of its own before them."""

    def owners(self, name: str) -> list[str]:
        """The commands that have an option of this name."""
        raise NotImplementedError


class ArgumentReader:
    """Rewrites arguments so that Typer's parser finds only whole names and separate values."""

    def __init__(self, command: Any, context: Any) -> None:
        self._context = context
        self._options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
        self._is_group = isinstance(command, TyperGroup)
        self._command = "" if self._is_group else str(command.name)
        self._said: Mapping[str, Option] = getattr(command.callback, "said", {})  # by the name of the parameter
        self._answers_flags = "model_draft" in self._said  # those of llama.cpp: it runs both models
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        self._n_texts = sum(one.nargs if one.nargs > 0 else len(sys.argv) for one in arguments)  # at most
        self._ignored: list[str] = []
        self._refused: dict[str, list[str]] = {}  # names, by the reason

    def read(self, args: Sequence[str]) -> list[str]:
        """The arguments, rewritten. Says which of them have no effect. Raises UsageError."""
        rest, found = deque(args), list[str]()
        while rest:
            argument = rest.popleft()
            is_option = argument.startswith("-") and argument not in ("-", "--")
            if argument == "--" or (self._is_group and not is_option):
                found += [argument, *rest]
                break
            found += self._read(argument, rest) if is_option else [self._text(argument)]
        if self._refused:
            raise UsageError("; ".join(f"{', '.join(names)}: {why}" for why, names in self._refused.items()))
        if self._ignored:
            from duo.cli.terminal.console import say  # noqa: PLC0415 - slow, and rarely needed

            say(f"duo: without effect here: {', '.join(dict.fromkeys(self._ignored))}")
        return found

    def _read(self, argument: str, rest: deque[str]) -> list[str]:
        """An option with its value."""
        name, equals, value = argument.partition("=")
        if equals:
            rest.appendleft(value)
        if (own := self._own_name(name)) is not None:
            if equals and self._options[own].is_flag:
                raise UsageError(f"{name} takes no value ({self._help()})")
            return self._with_value(own, rest, attached=bool(equals))
        match = _ATTACHED.fullmatch(argument)
        if match and match[1] in self._options and not self._options[match[1]].is_flag:
            rest.appendleft(match[2])
            return self._with_value(match[1], rest, attached=True)
        self._ignore(name, rest, attached=bool(equals))
        return []

    def _text(self, argument: str) -> str:
        self._n_texts -= 1
        if self._n_texts < 0 and not self._is_group:
            model = ": a model follows -m" if "-m" in self._options and argument.endswith(".gguf") else ""
            raise UsageError(f"unexpected argument {argument!r}{model} ({self._help()})")
        return argument

    def _own_name(self, name: str) -> str | None:
        """The option of the command that `name` means."""
        if name in self._options:
            return name
        from duo.cli.llama_flags import ALIASES  # noqa: PLC0415 - not needed for known names

        found = "--" + name[2:].replace("_", "-") if name.startswith("--") else name  # as llama.cpp reads it
        found = ALIASES.get(found, found)
        return found if found in self._options else None

    def _with_value(self, name: str, rest: deque[str], *, attached: bool) -> list[str]:
        """An option that the command has, and its value."""
        option = self._options[name]
        if option.is_flag:
            return [name]
        values = self._said[option.name].spellings if option.name in self._said else {}
        if "" in values and not attached and (not rest or (rest[0].startswith("-") and rest[0] not in values)):
            return [name, str(values[""])]
        if not rest:
            raise UsageError(f"{name} requires an argument ({self._help()})")
        return [name, rest.popleft()]

    def _ignore(self, name: str, rest: deque[str], *, attached: bool) -> None:
        """Leave out a flag of llama.cpp that has no effect here. Raises UsageError for any other name."""
        from duo.cli import llama_flags  # noqa: PLC0415 - not needed for known names

        flag = llama_flags.flags().get(name) if self._answers_flags else None
        if flag is None:
            raise UsageError(f"No such option: {name}{self._advice(name)} ({self._help()})")
        if attached and not flag.n_values:
            raise UsageError(f"{name} takes no value")
        value = None
        for _ in range(flag.n_values):
            if rest and (not flag.optional or rest[0] in llama_flags.SWITCH_VALUES):
                value = rest.popleft()
            elif not flag.optional:
                raise UsageError(f"{name} requires an argument")
        if flag.is_refused(value, self._command):
            self._refused.setdefault(flag.instead, []).append(name)
        else:
            self._ignored.append(name)

    def _advice(self, name: str) -> str:
        """What may have been meant: the same name in another command, or similar names in this one."""
        root = self._context.find_root().command
        if isinstance(root, Commands) and (owners := root.owners(name)):
            return f"; an option of {' and '.join(f'`{owner}`' for owner in owners)}"
        known = [known for known, option in self._options.items() if not option.hidden and known.startswith("-")]
        if self._answers_flags:
            from duo.cli.llama_flags import ALIASES, flags  # noqa: PLC0415 - not needed for known names

            known += [*ALIASES, *(name for name, flag in flags().items() if not flag.instead)]
        similar = nearest(name, known)
        return f"; similar: {', '.join(similar)}" if similar else ""

    def _help(self) -> str:
        return f"see {help_command(self._context)}"


def help_command(context: Any) -> str:
    """The command that lists the options of the command of this context."""
    path = getattr(context, "command_path", "duo")
    return "duo --help-all" if path == "duo" else f"{path} --help"
