"""Schemas and texts at random: what a schema's grammar takes, a validator takes; what is refused is named."""

import json
import re
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from jsonschema.protocols import Validator
from llguidance import LLMatcher, LLTokenizer

from duo.errors import UsageError
from duo.llama import grammar, json_schema
from duo.llama.json_schema import MARK, Unsatisfiable
from duo.llama.schema_documents import Unsupported
from tests.fuzz.cases import cases, dice

N_TEXTS = 10
EXACT = Context(prec=400)
BYTES = LLTokenizer("byte")
END = 256
KEYS = ("a", "b", "c", "x1", 'q"', "é", "a/b", "")
WORDS = ("", "a", "b", "ab", "x1", 'q"', "\\", "é", "\n", "aaaa", "2020-01-01", "\U0001f600", "ba")
NUMBERS = (0, 1, 2, 3, 5, 10, -1, -2, 0.5, -0.5, 0.25, 1.5, 2.5, 0.1, 99.99, 1e3, 1.0, 2**31, 2**53, 2**53 + 1,
           -(2**53) - 1, 2**60 + 1, 2**63 - 1, -(2**63), 10**18, 10**20, 1e300)  # fmt: skip
PATTERNS = (
    "^a", "a$", "^[ab]*$", "^x", '^[^"]*$', "^[^a]+$", "b", r"^\d+$", "^(a|b)$", r"^[^\\]$", "^.$", r"^\w{2}$", "^$",
    r'^[^\s"]$', r"^\[\]?$",
)  # fmt: skip
TYPES = ("string", "number", "integer", "object", "array", "boolean", "null")
# Everything that jsonschema computes is exact: 0.3 is a multiple of 0.1.
CHECKER = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
    "integer", lambda _, value: not isinstance(value, bool) and isinstance(value, int | Decimal) and value == int(value)
)
JUDGE: Any = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=CHECKER)  # type: ignore[no-untyped-call]


class Maker:
    """Schemas, values and their spellings."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.names = [f"d{i}" for i in range(draw.randrange(3))]

    def root(self) -> Any:
        schema = self.schema(draw_depth := self.draw.choice((1, 2, 2, 3)))
        if self.names and isinstance(schema, dict):
            schema["$defs"] = {name: self.schema(draw_depth - 1) for name in self.names}
        return schema

    def schema(self, depth: int) -> Any:
        draw = self.draw
        if draw.random() < 0.08:
            return draw.choice((True, False, {}))
        if depth < 1 or draw.random() < 0.15:
            return self.leaf()
        schema: dict[str, Any] = {}
        for _ in range(draw.choice((1, 1, 2, 3))):
            schema |= self.part(depth - 1)
        return schema

    def leaf(self) -> dict[str, Any]:
        draw = self.draw
        leaves: list[dict[str, Any]] = [
            {"type": draw.choice(TYPES)}, {"const": self.value(1)}, {"enum": [self.value(1) for _ in range(3)]},
            self.number(), self.number(), {"pattern": draw.choice(PATTERNS), "type": "string"},
            {draw.choice(("minLength", "maxLength")): draw.randrange(4)}, {"type": draw.choices(TYPES, k=2)},
        ]  # fmt: skip
        if self.names:
            leaves.append({"$ref": f"#/$defs/{draw.choice(self.names)}"})
        return draw.choice(leaves)

    def number(self) -> dict[str, Any]:
        draw = self.draw
        keys = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        found: dict[str, Any] = {key: draw.choice(NUMBERS) for key in draw.sample(keys, draw.choice((1, 2, 2)))}
        if draw.random() < 0.25:
            found["multipleOf"] = draw.choice((2, 3, 0.5, 0.01, 7, 1, 65537, 65539))
        return {"type": draw.choice(("number", "integer")), **found} if draw.random() < 0.7 else found

    def part(self, depth: int) -> dict[str, Any]:
        """A keyword or some that belong together."""
        draw, schema = self.draw, self.schema
        keys = draw.sample(KEYS, draw.choice((1, 2, 2, 3)))
        several = [schema(depth) for _ in range(draw.choice((1, 2, 2, 3)))]
        name = draw.choice(
            ("properties", "properties", "object", "object", "required", "additionalProperties", "patternProperties",
             "propertyNames", "minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems",
             "uniqueItems", "allOf", "anyOf", "oneOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas",
             "leaf",
             "unevaluatedProperties", "unevaluatedItems", "contains", "type")
        )  # fmt: skip
        parts: dict[str, Callable[[], Any]] = {
            "properties": lambda: {key: schema(depth) for key in keys},
            "required": lambda: keys, "additionalProperties": lambda: schema(depth),
            "patternProperties": lambda: {draw.choice(PATTERNS): schema(depth)},
            "propertyNames": lambda: draw.choice(({"maxLength": 1}, {"enum": keys}, {"pattern": "^a"}, schema(depth))),
            "minProperties": lambda: draw.randrange(4), "maxProperties": lambda: draw.randrange(4),
            "items": lambda: schema(depth), "prefixItems": lambda: several, "minItems": lambda: draw.randrange(4),
            "maxItems": lambda: draw.randrange(4), "uniqueItems": lambda: draw.choice((True, False)),
            "allOf": lambda: several, "anyOf": lambda: several, "oneOf": lambda: several, "not": lambda: schema(depth),
            "dependentRequired": lambda: {keys[0]: keys[1:]}, "dependentSchemas": lambda: {keys[0]: schema(depth)},
            "unevaluatedProperties": lambda: draw.choice((False, schema(depth))),
            "unevaluatedItems": lambda: draw.choice((False, schema(depth))), "contains": lambda: schema(depth),
            "type": lambda: draw.choice(TYPES),
        }  # fmt: skip
        if name == "leaf":
            return self.leaf()
        if name == "if":
            return {key: schema(depth) for key in ("if", *draw.sample(("then", "else"), draw.choice((1, 2))))}
        if name == "object":
            return {"type": "object", "properties": {key: schema(depth) for key in keys}, "required": keys[:1]}
        return {name: parts[name]()}

    def value(self, depth: int = 2) -> Any:
        draw = self.draw
        kind = draw.randrange(6 if depth > 0 else 4)
        if kind == 4:
            return [self.value(depth - 1) for _ in range(draw.randrange(4))]
        if kind == 5:
            return {draw.choice(KEYS): self.value(depth - 1) for _ in range(draw.randrange(4))}
        return draw.choice((WORDS, NUMBERS, (True, False), (None,))[kind])

    def written(self, value: Any) -> str:
        """A text of a value, or nearly: keys twice, escapes, other spellings of numbers."""
        draw = self.draw
        if isinstance(value, dict):
            pairs = [*value.items()]
            if pairs and draw.random() < 0.2:
                pairs.append((draw.choice(pairs)[0], self.value(1)))
            return f"{{{','.join(f'{self.written(key)}:{self.written(one)}' for key, one in pairs)}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self.written, value))}]"
        if isinstance(value, str) and value and draw.random() < 0.15:
            return f'"{"".join(f"{chr(92)}u{ord(c):04x}" if ord(c) < 2**16 else c for c in value)}"'
        if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.2:
            return draw.choice(
                (f"{value}.0", f"{value}.5", f"{value + 1}", f"-{value}" if value >= 0 else "-0", f"{value}1")
            )
        return json.dumps(value, ensure_ascii=draw.random() < 0.1)

    def example(self, schema: Any, depth: int = 4) -> Any:
        """A value that may match: what a part of the schema says, completed at random."""
        draw = self.draw
        if not isinstance(schema, dict) or not schema or depth < 0:
            return self.value(1)
        part = draw.choice([*schema.items()])
        if part[0] in ("const", "enum"):
            return part[1] if part[0] == "const" else draw.choice(part[1])
        if part[0] in ("allOf", "anyOf", "oneOf"):
            return self.example(draw.choice(part[1]), depth - 1)
        if part[0] in ("if", "then", "else", "not", "unevaluatedProperties") and draw.random() < 0.8:
            return self.example(part[1], depth - 1)
        if {"properties", "required", "patternProperties", "additionalProperties"} & schema.keys():
            known = schema.get("properties", {})
            names = [name for name in known if draw.random() < 0.7] + [*schema.get("required", [])]
            names += draw.sample(KEYS, draw.choice((0, 0, 1)))
            return {name: self.example(known.get(name, True), depth - 1) for name in names}
        if {"prefixItems", "items", "minItems"} & schema.keys():
            parts = [*schema.get("prefixItems", [])] + [schema.get("items", True)] * draw.randrange(3)
            return [self.example(one, depth - 1) for one in parts[: draw.randrange(5)]]
        bounds = [value for value in schema.values() if isinstance(value, int | float) and not isinstance(value, bool)]
        return draw.choice(bounds) + draw.choice((0, 0, 1, -1)) if bounds and draw.random() < 0.7 else self.value(1)


def walked(matcher: Any, draw: Random) -> str | None:
    """A text that a grammar takes, byte by byte; None if it does not end soon."""
    matcher.reset()
    data = bytearray()
    for i in range(160):
        if matcher.is_accepting() and draw.random() < 0.7:
            return data.decode()
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = [int(one) for one in np.flatnonzero(np.unpackbits(bits, bitorder="little")) if one < 256]
        if not allowed:
            return data.decode() if matcher.is_accepting() else None
        closing = [one for one in allowed if one in b'"]},:']
        usual = [one for one in allowed if 32 < one < 127] or allowed
        byte = draw.choice(
            closing if closing and draw.random() < 0.3 + i / 100 else usual if draw.random() < 0.9 else allowed
        )
        matcher.consume_token(byte)
        data.append(byte)
    return None


def takes(matcher: Any, text: str) -> bool:
    matcher.reset()
    data = [*text.encode()]
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def is_valid(judge: Validator, text: str) -> bool:
    """Whether it is valid with the last value of a key that is there twice."""
    with localcontext(EXACT):
        return bool(judge.is_valid(json.loads(text, parse_float=Decimal)))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars are checked here instead of in a process for each."""

    def written(request: str, name: str) -> str:
        try:
            text = json_schema.written(**json.loads(request))
            said = json_schema.refusal(text)
        except (Unsatisfiable, Unsupported) as error:
            said = str(error)
        if said:
            raise UsageError(said)
        return text

    monkeypatch.setattr(grammar, "_written", written)


@given(draw=dice)
@cases(2000)
@pytest.mark.usefixtures("in_process")
def test_what_a_grammar_takes_is_valid(draw: Random) -> None:
    maker = Maker(draw)
    schema = maker.root()
    try:
        text = grammar.schema_grammar(json.dumps(schema), "the schema")
    except UsageError as error:
        said = str(error)
        keywords = set(re.findall(r'"(\$?\w+)":', json.dumps(schema))) | {"no text can satisfy it"}
        assert any(word in said for word in keywords) or schema is False, (schema, said)
        return
    matcher = LLMatcher(BYTES, text.replace(f"{MARK} {{}}", f'{MARK} {{"no_forcing": true}}', 1), log_level=0)
    with localcontext(EXACT):
        judge = JUDGE(json.loads(json.dumps(schema), parse_float=Decimal))
    for i in range(N_TEXTS):
        if i % 2:
            text_of = walked(matcher, draw)
        else:
            text_of = maker.written(maker.example(schema))
            text_of = text_of if takes(matcher, text_of) else None
        if text_of is not None:
            assert is_valid(judge, text_of), (schema, text_of)
