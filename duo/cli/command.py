"""Commands whose options are the fields of a dataclass, so that each option is written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[[typer.Context, T], None]], Callable[..., None]]:
    """Make `command(context, options)` a function whose parameters are the options in `options`, for Typer to read.

    They are the annotated fields of the groups in `offers`, in that order, and then its own. Other fields that it
    inherits are fixed for this command. Its own plain fields only change defaults.
    """

    def decorate(command: Callable[[typer.Context, T], None]) -> Callable[..., None]:
        def wrapper(context: typer.Context, **values: Any) -> None:
            command(context, options(**values))

        offered: dict[str, Any] = {}
        for group in (*getattr(options, "offers", ()), options):
            hints = inspect.get_annotations(group, eval_str=True)
            offered |= {name: hint for name, hint in hints.items() if hasattr(hint, "__metadata__")}
        defaults = {field.name: field.default for field in fields(options)}  # type: ignore[arg-type]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", kind, annotation=typer.Context)]
        for name, hint in offered.items():
            default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        return wrapper

    return decorate
