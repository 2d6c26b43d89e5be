"""Schemas and grammars of a request, in any of the fields in which clients send them. Pure."""

import re
from typing import Annotated

import msgspec

from duo.chat.conversation import Json
from duo.errors import ApiError
from duo.llama.json_schema import MARK

Form = Json | str | None  # of an answer: a schema, or a grammar; None: a text

_TYPES = ("text", "json_object", "json_schema")
_WRAPPER = {"name", "description", "strict", "schema", "json_schema"}  # OpenAI's fields around a schema
_COMMENT = re.compile("//.*|#.*")
_ESCAPES = {"/": r"\/", "\n": r"\n"}  # in a regular expression in Lark
_Choices = Annotated[list[str], msgspec.Meta(min_length=1)]


class _Holder(msgspec.Struct, omit_defaults=True):
    """The `text` of Responses and the `output_config` of Messages."""

    format: Json | None = None
    effort: str | None = None


class _StructuredOutputs(msgspec.Struct):
    """vLLM's `structured_outputs`, or its older fields that begin with `guided_`."""

    json: Json | str | None = None
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def found(self, prefix: str) -> dict[str, Form]:
        """What is given, by the names of the fields. Raises ApiError."""
        grammar = self.grammar
        if grammar and not grammar.startswith(MARK) and "::=" not in _COMMENT.sub("", grammar):
            grammar = f"{MARK} {{}}\n{grammar}"
        choice = None if self.choice is None else f"({'|'.join(map(re.escape, self.choice))})"
        given: dict[str, Form] = {
            "json": _schema(self.json, f"{prefix}json"), "regex": _lark(self.regex), "choice": _lark(choice),
            "grammar": grammar, "json_object": {} if self.json_object else None,
        }  # fmt: skip
        return {f"{prefix}{name}": form for name, form in given.items() if form is not None}


class FormFields(msgspec.Struct):
    """The form of an answer, in any server's fields. All APIs have all of them."""

    response_format: Json | None = None
    text: _Holder | str | None = None  # of Responses; a text of other servers is ignored
    output_format: Json | None = None
    output_config: _Holder | None = None
    json_schema: Json | str | None = None
    grammar: str | None = None
    guided_json: Json | str | None = None
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: _StructuredOutputs | None = None
    regex: str | None = None  # SGLang's, and the next
    ebnf: str | None = None

    def form(self) -> tuple[str, Form]:
        """The field and the form in it. Raises ApiError."""
        holders = {"text": self.text, "output_config": self.output_config}
        formats = {f"{name}.format": held.format for name, held in holders.items() if isinstance(held, _Holder)}
        formats |= {"response_format": self.response_format, "output_format": self.output_format}
        found: dict[str, Form] = {place: _of_format(form, place) for place, form in formats.items() if form}
        found |= {"json_schema": _schema(self.json_schema, "json_schema"), "grammar": self.grammar}
        guided = (self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        found |= _StructuredOutputs(*guided).found("guided_") | _StructuredOutputs(regex=self.regex).found("")
        found["ebnf"] = self.ebnf
        if (outputs := self.structured_outputs) is not None:
            if not (given := outputs.found("structured_outputs.")):
                raise ApiError(400, f"structured_outputs has none of {', '.join(outputs.__struct_fields__)}")
            found |= given
        forms = {name: form for name, form in found.items() if form not in (None, "")}
        if any(isinstance(form, dict) and form for form in forms.values()):  # any schema is more than {}
            forms = {name: form for name, form in forms.items() if form != {}}
        name, form = next(iter(forms.items()), ("", None))
        if other := [name for name, another in forms.items() if another != form]:
            raise ApiError(400, f"{name} and {other[0]} exclude each other: send one")
        return name, form


def _lark(regex: str | None) -> str | None:
    """A grammar of the texts that match as a whole."""
    if not regex:
        return None
    escaped = re.sub(r"\\.|[/\n]", lambda found: _ESCAPES.get(found[0][-1], found[0]), regex, flags=re.DOTALL)
    return f"{MARK} {{}}\nstart: /{escaped}/"


def _of_format(form: Json, place: str) -> Json | None:
    """The schema of a `response_format`; None: the answer is a text. Raises ApiError."""
    form = {name: value for name, value in form.items() if value is not None}
    kind, instead = form.pop("type", None), f"{place}.{'json_schema.' if place == 'response_format' else ''}schema"
    if kind not in (None, *_TYPES):
        available = f"available: {', '.join(_TYPES)}"
        raise ApiError(400, f"unknown {place} {str(kind)[:40]!r} ({available}): send a schema as {instead}")
    if kind is not None:  # otherwise, it may be a schema itself
        form = {name: value for name, value in form.items() if name in ("json_schema", "schema")}
    if kind != "json_schema" and not form:
        return {} if kind == "json_object" else None
    if kind == "text":
        raise ApiError(400, f"{place} has a schema, but is of type text: send it with the type json_schema")
    return _schema(form or {"schema": None}, place, instead)


def _schema(value: Json | str | None, place: str, instead: str = "") -> Json | None:
    """The only schema in `value`, for which `instead` is the right place. Raises ApiError."""
    if value in (None, ""):  # a text field that is empty, in forms of front ends
        return None
    found = _schemas(value, place)
    if not found or any(other != found[0] for other in found):
        raise ApiError(400, f"{place} has {'two schemas' if found else 'no schema'}: send one as {instead or place}")
    return found[0]


def _schemas(value: object, place: str) -> list[Json]:
    """The schemas that this is, maybe as a text, or wraps. Raises ApiError."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise ApiError(400, f"{place} has a schema that is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"{place} has a schema that is not a JSON object")
    if not ((value and value.keys() <= _WRAPPER) or {"json_schema", "schema"} & value.keys()):
        return [value]
    inner = value.get("json_schema") or None, value.get("schema")  # an empty wrapper is none
    return [schema for one in inner if one is not None for schema in _schemas(one, place)]
