"""The flags of llama-cli, llama-completion and llama-server that duo does not have: llama_flags.txt as a table."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
    _, *sections = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n# ")
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
