"""Options are matched whole, those of llama.cpp are known, and for any other word what may have been meant is said."""

import os
import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, repeat
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup

from duo.cli.commands import COMMANDS
from duo.cli.commands.options import RunOptions
from duo.cli.terminal.console import note
from duo.config.option import Option, declared, nearest, similar
from duo.errors import UsageError

NO_EFFECT = "without effect here"
OFF = ("", "off", "disabled", "false", "0", "no", "n", "f")  # values of variables for switches
_SWITCH = "[on|off|auto]"
# Spellings of llama.cpp for options that duo calls differently.
ALIASES = {
    "-co": "--color", "--usage": "--help", "--log-verbose": "--verbose", "--spec-draft-hf": "--hf-repo-draft",
    "--spec-draft-threads": "--threads-draft", "--spec-draft-cpu-range": "--cpu-range-draft",
    "--spec-draft-ngl": "--gpu-layers-draft", "--ui": "--page", "--webui": "--page", "--no-ui": "--no-page",
    "--no-webui": "--no-page",
}  # fmt: skip
_ON = ("on", "enabled", "true", "1", "yes", "y", "t")  # values of variables for switches
_WIDE = 100  # columns that the table of Typer's help needs
# What `duo --help` shows: options and commands, by what they are about.
_MAIN = {
    "Models": "-m -md -hf -hfd", "Text": "-p -f -n --chat --temp", "Speed": "--draft -ngl",
    "Output": "-v -h --help-all", "Begin": "demo list chat memory", "Measure": "tune bench check plan doctor",
    "Serve": "lead batch back rpc-server",
}  # fmt: skip
_ATTACHED = re.compile(r"(-[A-Za-z]+)(-?\d+(?:\.\d+)?)")  # -n512


class WholeNames:
    """A command, or a group of them, whose options are matched whole: -cnv is not -c nv."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Parse the arguments; for Typer. Raises UsageError."""
        if not context.resilient_parsing:  # else the shell asks for completions
            args = ArgumentReader(self, context).read(args)
        for option in self.params:  # type: ignore[attr-defined]
            if getattr(option, "is_flag", False) and option.envvar:
                option.resolve_envvar_value = partial(_switch_value, option)
        parsed: list[str] = super().parse_args(context, args)  # type: ignore[misc]
        return parsed

    def format_help(self, context: Any, formatter: Any) -> None:
        """Print the help; for Typer. Below _WIDE columns, each option has lines of its own, and its whole names."""
        if (width := get_terminal_size().columns) >= _WIDE:
            super().format_help(context, formatter)  # type: ignore[misc]
            return
        fill = partial(wrap, width=width, break_on_hyphens=False)
        found: dict[str, list[tuple[str, str]]] = {}
        for one in self.params:  # type: ignore[attr-defined]
            if record := one.get_help_record(context):
                found.setdefault(getattr(one, "rich_help_panel", None) or "Options", []).append(record)
        commands = getattr(self, "commands", {}).items()
        found |= {"Commands": [(name, command.help) for name, command in commands]} if commands else {}
        lines = [context.get_usage(), "", *fill(" ".join(self.help.split()))]  # type: ignore[attr-defined]
        for panel, records in found.items():
            lines += ["", f"{panel}:"]
            for names, said in records:
                lines += fill(names, initial_indent="  ", subsequent_indent="    ")
                lines += fill(said, initial_indent=" " * 6, subsequent_indent=" " * 6)
        formatter.write("\n".join([*lines, "", *fill(self.epilog or ""), ""]))  # type: ignore[attr-defined]


def short_help(context: Any) -> str:
    """The main options and all commands of `duo`, with as much about each as has room in a line."""
    root, width = context.command, min(get_terminal_size().columns, _WIDE)
    options = {name: option for option in root.params for name in option.opts}
    lines = ["Usage: duo [OPTIONS], duo COMMAND [OPTIONS]", "", *wrap(" ".join(root.help.split()), width)]
    for title, names in _MAIN.items():
        lines.append("")
        for label, name in zip(chain([title], repeat("")), names.split(), strict=False):
            one: Any = COMMANDS.get(name) or options[name]
            n, value = (21, "") if name in COMMANDS else (33, "" if one.is_flag else one.metavar)
            ends = [found.start() for found in re.finditer(r"[.;,] |\.$", one.help)]
            said = one.help[: max((end for end in ends if end <= width - n), default=ends[0])]
            head = f"{label:<9}{name} {value}".ljust(n)
            lines += wrap(said, width, initial_indent=head, subsequent_indent=" " * n, break_on_hyphens=False)
    return "\n".join([*lines, "", *wrap(root.epilog, width)])


def _switch_value(option: Any, _: Any) -> str | None:
    """The value of a switch by its variables, as llama.cpp reads them."""
    variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar
    if option.secondary_opts and any(name.replace("_ARG_", "_ARG_NO_") in os.environ for name in variables):
        return "0"
    if (name := next(filter(os.environ.get, variables), None)) is None:
        return None
    value = os.environ[name].strip().lower()
    if value not in (*_ON, *OFF):
        raise UsageError(f"{name} must be on or off, not {value[:40]!r}")
    return "1" if value in _ON else "0"


class CommandWithWholeNames(WholeNames, TyperCommand):
    """A command."""


class ArgumentReader:
    """Rewrites arguments so that Typer's parser finds only whole names and separate values."""

    def __init__(self, command: Any, context: Any) -> None:
        self._options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
        self._command = "" if isinstance(command, TyperGroup) else str(command.name)
        self._said: Mapping[str, Option] = getattr(command.callback, "said", {})  # by the name of the parameter
        self._llama_flags = flags() if "model_draft" in self._said else {}  # for what runs both models
        self._help = f"see {help_command(context)}"
        self._ignored: dict[str, None] = {}
        self._refused: dict[str, list[str]] = {}  # names, by the reason

    def read(self, args: Sequence[str]) -> list[str]:
        """The arguments, rewritten. Says which of them have no effect. Raises UsageError."""
        rest, found, has_subcommand = deque(args), list[str](), False
        while rest:
            argument = rest.popleft()
            is_option = argument.startswith("-") and argument not in ("-", "--")
            found += self._read(argument, rest) if is_option else [argument]
            if argument == "--" or not (is_option or self._command):
                found += rest
                has_subcommand = argument != "--"
                break
        if self._refused:
            raise UsageError("; ".join(f"{', '.join(names)}: {why}" for why, names in self._refused.items()))
        if self._llama_flags and not has_subcommand:  # which tells it itself
            self._ignored |= dict.fromkeys(refused_variables(os.environ, self._command))
        if self._ignored:
            note(f"{NO_EFFECT}: {', '.join(self._ignored)}")
        return found

    def _read(self, argument: str, rest: deque[str]) -> list[str]:
        """An option with its value."""
        name, equals, value = argument.partition("=")
        dashed = name.replace("_", "-")  # as llama.cpp reads it
        own = name if name in self._options else ALIASES.get(dashed, dashed)
        attached = _ATTACHED.fullmatch(argument)
        if own not in self._options and attached and not getattr(self._options.get(attached[1]), "is_flag", True):
            own, equals, value = attached[1], "=", attached[2]
        if equals:
            rest.appendleft(value)
        if own == "--slots" and _begins_with_value(rest):  # before --slots was a switch
            own = "-np"
        option = self._options.get(own)
        if option is None:
            self._leave_out(name, rest)
            return []
        if option.is_flag:
            if equals:
                raise UsageError(f"{own} takes no value ({self._help})")
            return [own]
        spellings = self._said[option.name].spellings if option.name in self._said else {}
        if "" in spellings and not (equals or _begins_with_value(rest)):
            return [own, str(spellings[""])]
        return [own, self._value(own, rest)]

    def _value(self, name: str, rest: deque[str]) -> str:
        """The next argument, which is the value of an option. Raises UsageError if there is none."""
        if not rest:
            raise UsageError(f"{name} requires an argument ({self._help})")
        return rest.popleft()

    def _leave_out(self, name: str, rest: deque[str]) -> None:
        """Leave out a flag of llama.cpp that has no effect here. Raises UsageError for any other name."""
        flag = self._llama_flags.get(name)
        if flag is None:
            raise UsageError(f"No such option: {name}{self._advice(name)} ({self._help})")
        has_values = not flag.optional or _begins_with_value(rest)
        values = [self._value(name, rest) for _ in range(flag.n_values * has_values)]
        if flag.is_refused(values[-1] if values else None, self._command):
            self._refused.setdefault(flag.instead, []).append(name)
        else:
            self._ignored[name] = None

    def _advice(self, name: str) -> str:
        """What may have been meant: the same name in another command, or similar names in this one."""
        owners = [f"`duo {one}`" for one, command in COMMANDS.items() if name in _names(command.options, one)]
        owners = ["`duo`"] if name in _names(RunOptions(), "duo") else owners
        if owners:
            return f"; an option of {' and '.join(owners)}"
        known = [known for known, option in self._options.items() if not option.hidden and known.startswith("-")]
        if self._llama_flags:
            known += [*ALIASES, *(one for one, flag in self._llama_flags.items() if flag.instead == NO_EFFECT)]
        return similar(name, known)


def _begins_with_value(rest: Sequence[str]) -> bool:
    """Whether a value that may be missing is there: a word, or -1 for auto."""
    return bool(rest) and (not rest[0].startswith("-") or rest[0] == "-1")


def _names(options: Any, command: str) -> set[str]:
    """The flags that a command has."""
    return {name for one in declared(options, command) for name in one.option.flags}


def help_command(context: Any) -> str:
    """The command that lists the options of the command of this context."""
    path = getattr(context, "command_path", "duo")
    return "duo --help-all" if path == "duo" else f"{path} --help"


# What to say about a word that is no command: the first pattern that it matches counts.
_MEANT = {
    "suggest": "`duo tune -m FILE`, without -md, measures which draft is fastest",
    "profile": "`duo tune --list` lists what was learned about pairs of models, `duo tune --reset NAME` forgets it",
    "trace": "`duo -v` says where the time went; Perfetto (https://ui.perfetto.dev) opens the file of --trace",
    "devices": "`duo --list-devices` lists the devices, `duo doctor` says what is wrong with them",
    "serve|server": "`duo lead -m FILE` serves a model over an OpenAI-compatible API (-hf: from Hugging Face)",
    "ps": "duo has no service in the background: a model is loaded while its command runs; `duo list` shows all models",
    "stop": "duo has no service in the background: Ctrl-C ends `duo lead` and its models",
    "ls|show": "`duo list` shows the models in the caches",
    "rm|cp": "models are files: `duo list` shows where they are; delete or copy them there",
    "create": "duo has no model definitions: give -sys, --temp and other options to `duo chat` or `duo lead`",
    "push": "duo publishes no models: use huggingface-cli upload",
    "generate|completion": "`duo -m FILE -p TEXT` generates a text",
    "cli": "`duo chat -m FILE` chats with a model",
    "run|pull": "`duo chat {model}` or `duo {model} -p TEXT` (-hf: a model on Hugging Face, downloaded on first use)",
    r".*\.gguf": "a model follows -m: `duo chat -m {word}`, or `duo -m {word} -p TEXT`",
    "https?://.*": "to chat with a server: `duo chat {word}`",
    r"\d+": "a switch such as -v takes no value",
    r"(?s).*\S .*": "a prompt follows -p: `duo -m FILE -p {word}`",
}


def unknown_command(word: str, arguments: Sequence[str]) -> str:
    """One line about a word that is no command: what was meant, as far as `arguments` show it; else similar names."""
    model = next((argument for argument in arguments if not argument.startswith("-")), "")
    if not (meant := _meant(word, model)):
        words = (one for pattern in _MEANT for one in pattern.split("|") if one.isalpha())
        near = nearest(word, (*COMMANDS, "help", "version", *words))
        meant = _meant(near[0], model) if near else "`duo --help` lists the commands"
        meant = meant or f"similar: {', '.join(one for one in near if not _meant(one, model))}"
    return f"no command {word!r}: {meant}"


def _meant(word: str, model: str) -> str:
    """What to use instead of a word of another program, a model, an address or a number; empty for any other word."""
    repo = model.removeprefix("https://").removeprefix("hf.co/").removeprefix("huggingface.co/")
    name = f"-hf {shlex.quote(repo)}" if repo.count("/") == 1 else "-hf USER/REPO:QUANT"
    option = f"-m {shlex.quote(model)}" if model.endswith(".gguf") else name
    meant = next((text for pattern, text in _MEANT.items() if re.fullmatch(pattern, word)), "")
    return meant.format(word=shlex.quote(word), model=option)


# The flags of llama-cli, llama-completion and llama-server that duo does not have


class LlamaFlag(NamedTuple):
    """A flag that duo does not have."""

    names: tuple[str, ...]
    n_values: int
    optional: bool  # the value may be missing
    harmless: tuple[str, ...]  # values and commands with which it asks for what duo does anyway
    instead: str  # why it is refused and what to use instead, or NO_EFFECT

    variables: tuple[str, ...]  # with its values

    def is_refused(self, value: str | None, command: str) -> bool:
        """Whether a command refuses it, with its last value; the empty name is `duo` itself."""
        return self.instead != NO_EFFECT and not any(command == one or _same(value, one) for one in self.harmless)


def _same(value: str | None, other: str) -> bool:
    try:
        return value is not None and float(value) == float(other)
    except ValueError:
        return value == other


@cache
def flags() -> dict[str, LlamaFlag]:
    """All flags that duo does not have, by each of their names."""
    found: dict[str, LlamaFlag] = {}
    _, *sections = Path(__file__).with_name("llama_flags.txt").read_text(encoding="utf-8").split("\n# ")
    for instead, *lines in map(str.splitlines, sections):
        for part in " | ".join(filter(None, lines)).split(" | "):
            head, *harmless = part.split(" = ")
            names = tuple(word for word in head.split() if word.startswith("-"))
            others = [word[1:] for word in head.split() if word.startswith("$")]
            n_values = len(head.split()) - len(names) - len(others)
            variables = (f"LLAMA_ARG_{name[2:].upper().replace('-', '_')}" for name in names if name[:2] == "--")
            about = (tuple(harmless), instead, (*others, *variables))
            found |= dict.fromkeys(names, LlamaFlag(names, n_values, _SWITCH in head, *about))
    return found


def refused_variables(environment: Mapping[str, str], command: str) -> Iterator[str]:
    """The variables that are set and would be refused as flags of a command, and why."""
    for flag in dict.fromkeys(flags().values()):
        for name in flag.variables:
            value = environment.get(name, "")
            if flag.is_refused(value, command) and (value if flag.n_values else value not in OFF):
                yield f"{name} ({flag.instead})"
