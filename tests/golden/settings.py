"""duo/config/settings.py: the types of the keyword arguments of load() and generate(), from the configs."""

from __future__ import annotations

from typing import Any

from duo.config import EngineConfig, GenerationConfig
from duo.config.option import declared
from tests.command import ROOT

SETTINGS = ROOT / "duo" / "config" / "settings.py"
_HEAD = '''"""The types of keyword arguments. Generated from the configs by `make docs`: change these instead."""

from collections.abc import Mapping, Sequence
from typing import TypedDict
'''


def settings() -> str:
    """The text of the file."""
    grammar = "    json_schema: str | None  # as text, instead of a grammar\n"
    return (
        _HEAD
        + _class("Settings", "Settings of duo.load(): see EngineConfig.", EngineConfig())
        + _class(
            "TextOptions",
            "Options of Engine.stream(), generate() and others: see GenerationConfig.",
            GenerationConfig(),
        )
        + grammar
    )


def _class(name: str, about: str, config: Any) -> str:
    lines = [f"    {one.name}: {one.option.accepts or one.field.type}\n" for one in declared(config)]
    return f'\n\nclass {name}(TypedDict, total=False):\n    """{about}"""\n\n' + "".join(lines)
