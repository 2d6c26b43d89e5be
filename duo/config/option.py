"""What is said about a field of a config, once: options, keyword arguments, checks and documents derive from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, SupportsIndex, TypeVar

from duo.errors import UsageError

# The panels of --help, in their order.
PANELS = (
    "Main options", "What is measured", "Server", "Remote drafts", "Models", "Prompt and text", "Sampling", "Drafting",
    "Threads", "Devices", "Context", "Output", "",
)  # fmt: skip

TEXTS = "duo chat lead batch"  # the commands that generate what the user asks for
MAX_INT = 2**31 - 1

T = TypeVar("T")


class Bounds(NamedTuple):
    """The least and the largest number, and why there is no larger one."""

    least: float
    most: float
    why: str


COUNT = Bounds(0, MAX_INT, "llama.cpp has 32 bits for it")
PORTS = Bounds(0, 65_535, "that is the last TCP port")
PROBABILITY = Bounds(0, 1, "it is a probability")


@dataclass(frozen=True, slots=True)
class Option:
    """An option and parameter. What is empty does not apply."""

    # Names (`--x/--no-x`: a switch), what stands for the value, the default in words, variables:
    # `-t --threads N (all cores) $N_THREADS`
    usage: str = ""
    panel: str = ""  # of --help
    help: str = ""
    who: str = ""  # commands that have it; empty: all whose options include the field
    bounds: Bounds | None = None
    choices: tuple[str, ...] = ()
    spellings: Mapping[str, str | None] = field(default_factory=dict)  # other spellings of values; None: the default
    parse: Callable[[str], Any] | None = None  # text to value, raises ValueError; None: by the type
    excludes: str = ""  # a field that the environment cannot set where the command line sets this one
    hidden: bool = False  # whether no help shows it
    name: str = ""  # of the parameter, where it is not the field's
    accepts: str = ""  # the parameter's type, where it is not the field's

    def is_of(self, command: str) -> bool:
        """Whether a command has it."""
        return bool(self.usage) and (not self.who or command in self.who.split())

    @property
    def flags(self) -> list[str]:
        """The names of the option on a command line; none if its place tells which it is."""
        return [word for word in self.usage.replace("/", " ").split() if word.startswith("-")]

    @property
    def flag(self) -> str:
        """The flag by which messages name it; empty if it has none."""
        return next(iter(self.flags), "")


def option(default: T, usage: str = "", panel: str = "", help: str = "", **about: Any) -> T:  # noqa: A002
    """A field with this default, and what is said about it: see Option."""
    return field(default=default, metadata={"option": Option(usage, panel, help, **about)})


def switch(auto: str, on: str, off: str) -> dict[str, str | None]:
    """The spellings of these values by which llama.cpp knows them."""
    spelled = {auto: ("-1",), on: ("on", "true", "enabled", "1"), off: ("off", "false", "disabled", "0")}
    return {other: value for value, others in spelled.items() for other in others}


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
        if said is None:
            yield from declared(value, command) if is_dataclass(value) else ()
        elif not command or said.is_of(command):
            yield Declared(said.name or one.name, said, value, one, type(config))


def with_values(config: T, values: Mapping[str, Any], command: str = "") -> T:
    """`config` with these values of the options that declared() yields, by their names. Raises UsageError."""
    parts = {one.name: getattr(config, one.name) for one in fields(config)}  # type: ignore[arg-type]
    changes = {name: with_values(part, values, command) for name, part in parts.items() if is_dataclass(part)}
    own = (one for one in declared(config, command) if one.owner is type(config))
    changed = replace(config, **changes, **{one.field.name: values[one.name] for one in own if one.name in values})  # type: ignore[type-var]
    check(changed)
    return changed


def check(config: Any) -> None:
    """Check the fields against their options; other spellings of values become these values. Raises UsageError."""
    for name, said, value, one, owner in declared(config):
        if owner is not type(config):
            continue
        is_whole = one.type.startswith("int")
        choices = f"{'a number or ' * is_whole}one of {', '.join(said.choices)}"
        if value is None:
            _require(name, value, "a value", fits="None" in one.type)
        elif isinstance(value, str) and (other := said.spellings.get(value)):
            object.__setattr__(config, one.name, other)
        elif said.choices and (isinstance(value, str) or not said.bounds):  # beside texts, such as False for "off"
            _require(name, value, choices, fits=value in said.choices or value == one.default)
        elif said.bounds:
            check_number(name, value, said.bounds, is_whole=is_whole and not isinstance(value, str))
        else:
            _check_kind(name, value, str(one.type))


def _require(name: str, value: Any, what: str, *, fits: bool) -> None:
    """Raise UsageError unless the value of a parameter is what it must be."""
    if not fits:
        raise UsageError(f"{name} must be {what}, not {value!r}", name)


def _check_kind(name: str, value: Any, kind: str) -> None:
    """Raise UsageError for a value that is no text, switch, mapping, list of texts, or list, where `kind` is one."""
    if kind.startswith("str"):
        _require(name, value, "a text", fits=isinstance(value, str))
    elif kind.startswith("bool"):
        _require(name, value, "True or False", fits=value in (True, False))
    elif kind.startswith("Mapping"):
        _require(name, value, "a dict", fits=isinstance(value, Mapping))
    elif kind.startswith(("tuple[", "Sequence[", "list[")):
        _require(name, value, "a list", fits=isinstance(value, Sequence) and not isinstance(value, str))
        if "[str" in kind and (wrong := [each for each in value if not isinstance(each, str)]):
            raise UsageError(f"{name} must have texts, not {wrong[0]!r}", name)


def check_number(name: str, value: Any, bounds: Bounds, *, is_whole: bool = False) -> None:
    """Raise UsageError unless `value` is a number within these bounds."""
    least, most, why = bounds
    if is_whole:
        _require(name, value, "a whole number", fits=isinstance(value, SupportsIndex))
    _require(name, value, "a number", fits=hasattr(value, "__float__"))
    if not value >= least:  # also nan
        raise UsageError(f"{name} must be at least {least}, not {value}", name)
    if value > most:
        raise UsageError(f"{name} must be at most {most}, not {value}: {why}", name)


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for a name of a keyword argument that is not `known`; it names the nearest ones."""
    names = list(known)
    for name in given:
        if name not in names:
            raise TypeError(f"unknown keyword argument {name!r}{similar(name, names)}")


def similar(name: str, known: Iterable[str]) -> str:
    """`; similar: ` and the names most similar to one that was mistyped, at most three; empty if there are none."""
    found = nearest(name, known)
    return f"; similar: {', '.join(found)}" if found else ""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names most similar to one that was mistyped, the best first; at most three."""
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    names = dict.fromkeys(known)
    swapped = [one for one in names if sorted(one) == sorted(name)]
    longer = [one for one in names if len(name) > 2 and one.startswith(name)]
    return list(dict.fromkeys([*swapped, *longer, *get_close_matches(name, names, 3, 0.6)]))[:3]


def read(said: Option, kind: str, text: str) -> Any:
    """The value of an option that is typed as `text`, for a field of the type `kind`. Raises ValueError."""
    known = said.spellings.get(text, text)
    if known is None or known in said.choices:
        return known
    if said.parse is not None:
        return said.parse(known)
    try:
        return {"int": int, "float": float}.get(kind.partition(" ")[0], str)(known)
    except ValueError:
        words = [repr(word) for word in (*said.choices, *said.spellings) if word.isalpha()]
        raise ValueError(f"{text!r} is not {' or '.join(['a number', *words])}") from None


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas; `none` is the empty list. Raises ValueError."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError(f"{text!r}: a name is missing")
    return () if found == ("none",) else found
