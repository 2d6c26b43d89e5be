"""Commands whose options are the fields of a dataclass, so that each option is written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

import typer

T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[[typer.Context, T], None]], Callable[..., None]]:
    """Make `command(context, options)` a function whose parameters are the fields of `options`, for Typer to read."""

    def decorate(command: Callable[[typer.Context, T], None]) -> Callable[..., None]:
        def wrapper(context: typer.Context, **values: Any) -> None:
            command(context, options(**values))

        hints = get_type_hints(options, include_extras=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("context", kind, annotation=typer.Context)]
        for field in fields(options):  # type: ignore[arg-type]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name]))
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        return wrapper

    return decorate
