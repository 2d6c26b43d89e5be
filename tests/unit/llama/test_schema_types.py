"""Schemas that libraries make of types: each is served, and what is written under it is valid."""

import json
from typing import Any

import pytest

from duo.errors import UsageError
from duo.llama.grammar import schema_grammar


def grammar(schema: Any) -> str:
    return schema_grammar(json.dumps(schema), "x")


FORMATS = """
    uuid9 path file-path directory-path binary byte base64 base64url nanoid cuid cuid2 ulid xid ksuid jwt emoji e164 mac
    hex lowercase password int32 int64 float double decimal ipvanyaddress ipv4network ipv6interface multi-host-uri
    json-string color phone includes regex iri uri-reference json-pointer idn-email unknown
"""
# Additions to a schema that say nothing about a text. llguidance refuses most of them.
NOTES: tuple[dict[str, Any], ...] = (
    *({"propertyNames": names} for names in ({"type": "string"}, {}, True, {"type": "string", "format": "cuid"})),
    *({"format": name} for name in FORMATS.split()),
    {"uniqueItems": False}, {"minItems": 0}, {"minLength": 0}, {"minProperties": 0}, {"minLength": 0.0},
    {"not": False}, {"dependentRequired": {}},
    {"unevaluatedProperties": {}}, {"unevaluatedProperties": True}, {"unevaluatedItems": True},
    {"maxLength": None, "enum": None, "properties": None, "required": None, "items": None},
)  # fmt: skip
ABOUT: dict[str, Any] = {  # what llguidance ignores
    "deprecated": True, "readOnly": True, "writeOnly": False, "contentEncoding": "base64", "x-order": 1, "example": 1,
    "contentMediaType": "text/plain", "nullable": True, "$comment": "a", "title": "a", "description": "a",
    "examples": [1], "default": None, "discriminator": {"propertyName": "t"}, "xml": {}, "externalDocs": {},
}  # fmt: skip
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "enum": ["a", "b"]},
    {"type": ["object", "null"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
    {"type": "array", "items": {"type": "integer"}},
)


@pytest.mark.parametrize("note", NOTES, ids=str)
def test_what_changes_nothing_is_left_out(note: dict[str, Any]) -> None:
    several = {f"p{i}": schema for i, schema in enumerate(SCHEMAS)}
    noted = {name: schema | {key: note[key] for key in note if key not in schema} for name, schema in several.items()}
    assert grammar({"type": "object", "properties": noted}) == grammar({"type": "object", "properties": several})
    assert grammar(note | SCHEMAS[0]) == grammar(SCHEMAS[0])


def test_annotations_are_accepted() -> None:
    several = {name: {name: value, "type": "string"} for name, value in ABOUT.items()}
    grammar({"type": "object", "properties": several, **ABOUT})


def test_an_object_that_says_that_it_is_open_is() -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    assert '"additionalProperties": false' in grammar(schema)
    assert '"additionalProperties": false' not in grammar(schema | {"unevaluatedProperties": {}})


COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


@pytest.mark.parametrize("keyword", COUNTS)
def test_a_whole_number_may_have_a_point(keyword: str) -> None:
    assert grammar({keyword: 10.0}) == grammar({keyword: 10})
    with pytest.raises(UsageError, match=keyword):
        grammar({keyword: 10.5})


# Beside them, the same keywords say something.
ASSERTIONS: tuple[dict[str, Any], ...] = (
    {"propertyNames": {"enum": ["a"]}},
    {"propertyNames": 1},
    {"type": "array", "uniqueItems": True},
    {"uniqueItems": 0},
    {"not": {"type": "string"}},
    {"if": {"type": "null"}, "then": False},
    {"contains": {"type": "null"}},
    {"contains": {"type": "null"}, "minContains": 0, "maxContains": 0},
    {"dependentRequired": {"a": ["b"]}},
    {"unevaluatedItems": False},
    {"const": None},
    {"format": "date"},
    {"format": 5},
    {"minLength": 1},
    {"minLength": False},
)


@pytest.mark.parametrize("schema", ASSERTIONS, ids=str)
def test_what_changes_something_is_not(schema: dict[str, Any]) -> None:
    try:
        found = grammar(schema)
    except UsageError:
        return
    assert found != grammar({"type": schema["type"]} if "type" in schema else True)
