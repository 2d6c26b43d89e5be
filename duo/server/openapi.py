"""OpenAPI: the document that describes the lead's API, from its routes and the structs of its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.routing import Route

from duo import __version__
from duo.server.answer_objects import CompletionObject
from duo.server.api import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from duo.server.progress import Progress, Spans, TextBegins, TextEnds
from duo.server.state import LeadState

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request is invalid, or the prompt too long.",
    401: "The API key is missing or wrong.",
    403: "The host or the origin is not allowed.",
    404: "There is no such model.",
    408: "The body was not received in time.",
    413: "The body is too large.",
    426: "The path is the WebSocket of remote drafts.",
    500: "The generation failed.",
    503: "The model is loading, the queue full, or the server stopping.",
}
_GET_ERRORS = (401, 403, 500, 503)
_POST_ERRORS = (400, 401, 403, 404, 408, 413, 500, 503)


class Health(msgspec.Struct):
    """The server is ready."""

    status: Literal["ok"]


class ModelObject(msgspec.Struct):
    """A model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    meta: dict[str, int]


class Models(msgspec.Struct):
    """The models of the server, of which there is one."""

    object: Literal["list"]
    data: list[ModelObject]


class TextDefaults(msgspec.Struct):
    """The context, and the options of a text whose request has none."""

    n_ctx: int
    params: dict[str, bool | float | list[str]]


class Props(msgspec.Struct):
    """The server's properties."""

    default_generation_settings: TextDefaults
    total_slots: Literal[1]
    model_alias: str
    model_path: str
    model_ftype: str
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class PromptText(msgspec.Struct):
    """The messages of a chat, in the model's chat template."""

    prompt: str


class Token(msgspec.Struct):
    """A token and its text, or its bytes if they are not UTF-8."""

    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct):
    """Tokens; with `with_pieces`, each with its text."""

    tokens: list[int | Token]


class Content(msgspec.Struct):
    """The text of tokens."""

    content: str


class ErrorDetails(msgspec.Struct):
    """What was wrong."""

    message: str
    type: str
    param: None
    code: int | str


class Error(msgspec.Struct):
    """An error."""

    error: ErrorDetails


@dataclass(frozen=True, slots=True)
class Operation:
    """What an endpoint takes and answers: structs, or the media type of text."""

    summary: str
    answer: type[msgspec.Struct] | str
    request: type[msgspec.Struct] | None = None
    is_streamed: bool = False
    errors: tuple[int, ...] = _GET_ERRORS
    events: tuple[type[msgspec.Struct], ...] = ()  # of a stream of server-sent events with names


# By the name of the endpoint's function.
OPERATIONS = {
    "_health": Operation("Whether the server can generate texts", Health),
    "_metrics": Operation("Metrics for Prometheus", "text/plain"),
    "_openapi": Operation("This document", "application/json"),
    "events": Operation(
        "What happens, as events: state, text, progress, spans",
        "text/event-stream",
        events=(LeadState, TextBegins, TextEnds, Progress, Spans),
    ),
    "models": Operation("The model as a list", Models),
    "model": Operation("The model", ModelObject, errors=(*_GET_ERRORS, 404)),
    "_chat": Operation("The answer to messages", CompletionObject, ChatRequest, is_streamed=True, errors=_POST_ERRORS),
    "_apply_template": Operation("The prompt of a chat", PromptText, ChatRequest, errors=_POST_ERRORS),
    "_complete": Operation("The text after a prompt", CompletionObject, CompletionRequest, True, _POST_ERRORS),
    "props": Operation("Properties of the server and the model", Props),
    "tokenize": Operation("The tokens of a text", Tokens, TokenizeRequest, errors=_POST_ERRORS),
    "detokenize": Operation("The text of tokens", Content, DetokenizeRequest, errors=_POST_ERRORS),
}


def document(routes: Iterable[Route], *, needs_key: bool) -> dict[str, Any]:
    """The OpenAPI document of `routes`; `needs_key`: clients must send an API key."""
    used = (kind for op in OPERATIONS.values() for kind in (op.answer, op.request, *op.events))
    structs = {kind for kind in used if not isinstance(kind, str)}
    kinds = sorted((kind for kind in (*structs, Error) if kind is not None), key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    paths: dict[str, Any] = {}
    for route in routes:
        operation = OPERATIONS[route.endpoint.__name__]
        method = "get" if operation.request is None else "post"
        path = route.path.replace(":path}", "}")
        paths[path] = {method: _operation(operation, path, route)}
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "duo lead", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
        "security": [{name: []} for name in schemes] if needs_key else [],
    }


def _operation(operation: Operation, path: str, route: Route) -> dict[str, Any]:
    errors = {
        str(status): {"description": _ERRORS[status], "content": _content(Error)} for status in sorted(operation.errors)
    }
    content = _content(operation.answer)
    if operation.is_streamed:
        content |= _events("CompletionObject", "Error", more=[{"const": "[DONE]"}])
    elif operation.events:
        content = _events(*(kind.__name__ for kind in operation.events))
    fields: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", path).strip("_"),
        "responses": {"200": {"description": "The answer.", "content": content}, **errors},
    }
    if operation.request is not None:
        fields["requestBody"] = {"required": True, "content": _content(operation.request)}
    if route.param_convertors:
        fields["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.param_convertors
        ]
    if route.endpoint.__name__ == "_health":
        fields["security"] = []
    return fields


def _events(*names: str, more: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Server-sent events whose data is one of these structs as JSON, or `more`."""
    structs = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [{"$ref": _REFERENCE.format(name=name)} for name in names]},
    }
    schema = {
        "type": "object",
        "description": "An event.",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [structs, *more]}},
    }
    return {"text/event-stream": {"schema": schema}}


def _content(kind: type[msgspec.Struct] | str) -> dict[str, Any]:
    if isinstance(kind, str):
        return {kind: {"schema": {"type": "string" if kind.startswith("text/") else "object"}}}
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=kind.__name__)}}}
