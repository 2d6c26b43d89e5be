"""What is said about a field of a config, once: as an option of commands, and as a parameter of programs.

The options of the commands, the parameters of load() and generate(), their checks, and the tables in
docs/configuration.md derive from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

from duo.errors import UsageError

# The panels of --help, in their order.
MAIN, MEASURED, SERVER, BACKS = "Main options", "What is measured", "Server", "Remote drafts"
MODELS, PROMPT, SAMPLING, DRAFTING = "Models", "Prompt and text", "Sampling", "Drafting"
THREADS, DEVICES, CONTEXT, OUTPUT = "Threads", "Devices", "Context", "Output"
PANELS = (MAIN, MEASURED, SERVER, BACKS, MODELS, PROMPT, SAMPLING, DRAFTING, THREADS, DEVICES, CONTEXT, OUTPUT)

# Commands that have an option.
RUN, BACK = frozenset(["duo"]), frozenset(["back"])
TEXTS = frozenset(["duo", "chat", "lead"])  # those that generate what the user asks for
MEASURING = frozenset(["bench", "check", "tune"])

MAX_INT = 2**31 - 1
INT = "llama.cpp has 32 bits for it"
PORT = "that is the last TCP port"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """An option and parameter. What is empty does not apply."""

    flags: str = ""  # its names on a command line, `--x/--no-x` for a switch; only programs have it without
    panel: str = ""  # of --help
    help: str = ""
    who: frozenset[str] | None = None  # commands that have it; None: all whose options include the field
    metavar: str | None = None  # what stands for its value in --help
    env: tuple[str, ...] = ()  # environment variables
    default_text: str | None = None  # the default in words
    least: float | None = None
    most: float | None = None
    why: str = ""  # there is nothing above `most`
    choices: tuple[str, ...] = ()
    spellings: Mapping[str, str | None] = field(default_factory=dict)  # other spellings of values; None: the default
    parse: Callable[[str], Any] | None = None  # text to value, raises ValueError; None: by the type
    excludes: str = ""  # a field that the environment cannot set where the command line sets this one
    is_main: bool = False  # whether `duo --help` shows it
    hidden: bool = False  # whether no help shows it
    is_eager: bool = False  # whether it is read before the others
    is_argument: bool = False  # whether it has no flags, but is told by its place
    name: str = ""  # of the parameter, where it is not the field's
    accepts: str = ""  # the parameter's type, where it is not the field's

    def is_of(self, command: str) -> bool:
        """Whether a command has it."""
        return bool(self.flags or self.is_argument) and (self.who is None or command in self.who)

    @property
    def flag(self) -> str:
        """The flag by which messages name it; empty if it has none."""
        return self.flags.replace("/", " ").split(" ")[0]


def option(default: T, flags: str = "", panel: str = "", help: str = "", **about: Any) -> T:  # noqa: A002
    """A field with this default, and what is said about it: see Option."""
    return field(default=default, metadata={"option": Option(flags, panel, help, **about)})


class Declared(NamedTuple):
    """A field with an Option."""

    name: str  # of the parameter
    option: Option
    default: Any
    field: Field[Any]
    owner: type


def declared(config: Any, command: str = "") -> Iterator[Declared]:
    """The options of `config` and of the configs in its fields; only those that `command` has, if it is named."""
    for one in fields(config):
        said: Option | None = one.metadata.get("option")
        value = getattr(config, one.name)
        if said is not None and (not command or said.is_of(command)):
            yield Declared(said.name or one.name, said, value, one, type(config))
        elif is_dataclass(value):
            yield from declared(value, command)


def with_values(config: T, values: Mapping[str, Any], command: str = "") -> T:
    """`config` with these values of the options that declared() yields, by their names. Raises UsageError."""
    changes: dict[str, Any] = {}
    for one in fields(config):  # type: ignore[arg-type]
        said: Option | None = one.metadata.get("option")
        name = (said and said.name) or one.name
        value = getattr(config, one.name)
        if said is not None:
            if name in values and (not command or said.is_of(command)):
                changes[one.name] = values[name]
        elif is_dataclass(value) and (changed := with_values(value, values, command)) is not value:
            changes[one.name] = changed
    return replace(config, **changes) if changes else config  # type: ignore[type-var]


def check(config: Any) -> None:
    """Check the fields of `config` against their options; other spellings of values become these values.

    Raises UsageError.
    """
    for one in fields(config):
        said: Option | None = one.metadata.get("option")
        value = getattr(config, one.name)
        if said is None or value is None:
            continue
        if isinstance(value, str) and (other := said.spellings.get(value)):
            object.__setattr__(config, one.name, other)
        elif isinstance(value, str) and said.choices:
            _check_choice(said.name or one.name, value, said, one)
        elif said.least is not None or said.most is not None:
            is_whole = str(one.type).startswith("int")
            check_number(said.name or one.name, value, said, is_whole=is_whole)


def _check_choice(name: str, value: str, said: Option, of: Field[Any]) -> None:
    if value not in said.choices:
        number = "a number or " if str(of.type).startswith("int") else ""
        raise UsageError(f"{name} must be {number}one of {', '.join(said.choices)}, not {value!r}", name)


def check_number(name: str, value: Any, said: Option, *, is_whole: bool = False) -> None:
    """Raise UsageError unless `value` is a number within the bounds of `said`."""
    if is_whole:
        try:
            operator.index(value)
        except TypeError:
            raise UsageError(f"{name} must be a whole number, not {value!r}", name) from None
    if said.least is not None and not value >= said.least:  # also nan
        raise UsageError(f"{name} must be at least {_exactly(said.least)}, not {value}", name)
    if said.most is not None and value > said.most:
        raise UsageError(f"{name} must be at most {_exactly(said.most)}, not {value}: {said.why}", name)


def _exactly(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for a name of a keyword argument that is not `known`; it names the nearest ones."""
    names = list(known)
    for name in given:
        if name not in names:
            similar = nearest(name, names)
            raise TypeError(f"unknown keyword argument {name!r}" + (f"; similar: {', '.join(similar)}" * bool(similar)))


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names most similar to one that was mistyped, the best first, those in another order before; at most three."""
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    names = dict.fromkeys(known)
    swapped = [one for one in names if sorted(one) == sorted(name)]
    return list(dict.fromkeys([*swapped, *get_close_matches(name, names, 3, 0.6)]))[:3]


# Texts to values


def read(said: Option, kind: str, text: str) -> Any:
    """The value of an option that is typed as `text`, for a field of the type `kind`. Raises ValueError."""
    known = said.spellings.get(text, text)
    if known is None:
        return None
    if said.parse is not None:
        return said.parse(known)
    if said.choices:
        if known in said.choices:
            return known
        if not kind.startswith("int"):
            raise ValueError(f"{text!r} is not one of {', '.join(map(repr, said.choices))}")
    if kind.startswith("int"):
        words = [*said.choices, *(name for name, value in said.spellings.items() if value is None and name.isalpha())]
        return whole(known, words)
    return number(known) if kind.startswith("float") else known


def whole(text: str, words: Sequence[str] = ()) -> int:
    """A whole number; the message says that these `words` are possible, too. Raises ValueError."""
    with suppress(ValueError):
        return int(text)
    raise ValueError(f"{text!r} is not {' or '.join(['a number', *map(repr, words)]) if words else 'an integer'}")


def number(text: str) -> float:
    """A number. Raises ValueError."""
    with suppress(ValueError):
        return float(text)
    raise ValueError(f"{text!r} is not a number")


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas; `none` is the empty list. Raises ValueError."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError(f"{text!r}: a name is missing")
    return () if found == ("none",) else found
