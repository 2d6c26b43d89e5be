"""Schemas that libraries make of types: each is served, and what is written under it is valid."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from duo.config import ModelConfig
from duo.errors import UsageError
from duo.llama.grammar import schema_grammar
from duo.llama.grammar_process import Lark
from duo.llama.model import Model
from tests.gguf_files import tiny_llama
from tests.unit.llama.schema_types import TYPES


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
    {"uniqueItems": False}, {"minProperties": 0},
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


COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


@pytest.mark.parametrize("keyword", COUNTS)
def test_a_whole_number_may_have_a_point(keyword: str) -> None:
    assert grammar({keyword: 1.0}) == grammar({keyword: 1})
    with pytest.raises(UsageError, match=keyword):
        grammar({keyword: 1.5})


# Beside them, the same keywords say something.
ASSERTIONS: tuple[dict[str, Any], ...] = (
    {"propertyNames": {"enum": ["a"]}}, {"propertyNames": 1}, {"type": "array", "uniqueItems": True},
    {"uniqueItems": 0}, {"not": {"type": "string"}}, {"if": {"type": "null"}, "then": False},
    {"contains": {"type": "null"}}, {"contains": {"type": "null"}, "minContains": 0, "maxContains": 0},
    {"dependentRequired": {"a": ["b"]}}, {"unevaluatedItems": False}, {"const": None}, {"format": "date"},
    {"format": 5}, {"minLength": 1}, {"minLength": False},
)  # fmt: skip


@pytest.mark.parametrize("schema", ASSERTIONS, ids=str)
def test_what_changes_something_is_not(schema: dict[str, Any]) -> None:
    try:
        found = grammar(schema)
    except UsageError:
        return
    assert found != grammar({"type": schema["type"]} if "type" in schema else True)


# Types

ZOD: dict[str, Any] = json.loads(Path(__file__).with_name("zod.json").read_bytes())["schemas"]
N_ANSWERS, MAX_TOKENS = 4, 4000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", words=())
    with closing(Model(ModelConfig(path), vocabulary_only=True)) as loaded:
        yield loaded


def answer(model: Model, grammar: str, seed: int) -> str:
    """A text at random that the grammar takes. What may be closed often is, so that it ends."""
    applied, random, text = Lark(model, grammar), Random(seed), b""
    for _ in range(MAX_TOKENS):
        allowed = [int(token) for token in np.flatnonzero(applied.mask())]
        closing = [token for token in allowed if model.piece(token) in (b"", b'"', b"}", b"]")]
        token = random.choice(closing if closing and random.random() < 0.4 else allowed)
        if token == model.eos:
            return text.decode()
        applied.accept(token)
        text += model.piece(token)
    raise AssertionError(text)


def check(model: Model, schema: Any) -> list[str]:
    """Answers at random, which are valid."""
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    answers = [answer(model, grammar(schema), seed) for seed in range(N_ANSWERS)]
    for text in answers:
        judge.validate(json.loads(text))
    return answers


@pytest.mark.parametrize("name", TYPES)
def test_types_of_pydantic(model: Model, name: str) -> None:
    kind: TypeAdapter[Any] = TypeAdapter(TYPES[name])
    for text in check(model, kind.json_schema()):
        kind.validate_json(text)


@pytest.mark.parametrize("name", ZOD)
def test_types_of_zod(model: Model, name: str) -> None:
    assert check(model, ZOD[name])


# Formats that are enforced


def takes(model: Model, schema: Any, value: Any) -> bool:
    applied = Lark(model, grammar(schema))
    for byte in json.dumps(value).encode():
        token = next(token for token in range(model.n_vocab) if model.piece(token) == bytes([byte]))
        if not applied.allows(token):
            return False
        applied.accept(token)
    return applied.allows(model.eos)


V4 = "9b2c1f6e-3d4a-4b5c-8d6e-7f8091a2b3c4"
# https://github.com/json-schema-org/JSON-Schema-Test-Suite has these texts, but for the versions of UUIDs.
VALID = {
    "date": ["2020-02-29", "2000-02-29", "2021-12-31", "2021-02-28", "2021-10-29"],
    "time": ["22:59:59Z", "08:30:06.283185Z", "08:30:06-08:00"],
    "date-time": ["1963-06-19T08:30:06.283185Z", "2020-02-29T00:00:00+01:00"],
    "uuid4": [V4],
}
INVALID = {
    "date": ["2021-02-29", "1900-02-29", "2020-02-30", "2021-04-31", "2020-13-01"],
    "time": ["22:59:60Z", "23:58:60+00:00", "23:59:60-01:00", "24:00:00Z"],
    "date-time": ["1998-12-31T23:58:60Z", "2021-02-29T00:00:00Z", "1990-02-31T15:59:59.123-08:00"],
    "uuid4": [V4.replace("-4", "-5"), V4.replace("-8", "-c"), V4[1:]],
}


@pytest.mark.parametrize("name", VALID)
def test_formats(model: Model, name: str) -> None:
    kinds: list[dict[str, Any]] = [{"type": "string"}, {"type": ["string", "null"], "allOf": [{"minLength": 3}]}, {}]
    for schema in kinds:
        assert all(takes(model, schema | {"format": name}, text) for text in VALID[name])
        assert not any(takes(model, schema | {"format": name}, text) for text in INVALID[name])


def test_a_format_beside_a_pattern_and_constants(model: Model) -> None:
    schema = {"type": "string", "format": "date", "pattern": "^202[01]"}
    assert takes(model, schema, "2020-02-29")
    assert not any(takes(model, schema, text) for text in ("2021-02-29", "1999-01-01", "2020"))
    assert takes(model, {"enum": ["2020-01-01", "2021-02-29", "b"], "format": "date"}, "2020-01-01")
    assert not takes(model, {"enum": ["2020-01-01", "2021-02-29", "b"], "format": "date"}, "2021-02-29")
    assert takes(model, {"type": "string", "format": "nanoid", "pattern": "^[a-z]$"}, "a")
    grammar({"type": "integer", "format": "date", "allOf": {}} | {"allOf": [{"minimum": 0}]})


def test_an_object_that_says_that_it_is_open_is(model: Model) -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    assert not takes(model, schema, {"b": 1})
    assert takes(model, schema | {"unevaluatedProperties": {}}, {"b": 1})
