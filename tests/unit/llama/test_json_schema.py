"""JSON schemas: what a schema's grammar takes is valid, what is valid is taken, and the rest is refused by name."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from duo.errors import UsageError
from duo.llama.grammar import schema_grammar, schemas_grammar
from duo.llama.json_schema import MARK

BYTES = LLTokenizer("byte")


def takes(schema: Any, *texts: str) -> list[bool]:
    grammar = schema_grammar(json.dumps(schema), "x").replace(f"{MARK} {{}}", f'{MARK} {{"no_forcing": true}}')
    found = []
    for text in texts:
        matcher, data = LLMatcher(BYTES, grammar, log_level=0), [*text.encode()]
        found.append(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())
    return found


OBJECT = {"type": "object", "additionalProperties": False}
LISTS: dict[str, Any] = {
    "t": {"type": "object", "properties": {"c": {"$ref": "#/$defs/t"}, "x": {}}},
    "u": {"properties": {"c": {"allOf": [{"$ref": "#/$defs/u"}, {"required": ["x"]}]}}},
}
NOT_TAKEN: tuple[tuple[Any, list[str], list[str]], ...] = (
    # A whole exclusive bound less than 1 from the other
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.01"], ["0", "0.0", "-0", "0.51"]),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.01"], ["0", "-0", "-0.0"]),
    ({"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 3.75}, ["3.1"], ["3", "3.0", "3.75"]),
    ({"allOf": [{"exclusiveMinimum": 2}, {"maximum": 2.5}], "type": "number"}, ["2.5"], ["2"]),
    # Beyond 2^53
    ({"type": "integer", "maximum": 2**63 - 1}, [str(2**53), "5"], [str(2**63), str(10**30)]),
    ({"type": "integer", "minimum": -(2**53) - 1}, [str(-(2**53))], [str(-(2**53) - 2)]),
    ({"type": "integer", "maximum": 10**30, "exclusiveMinimum": 5}, ["6"], ["5", str(10**31)]),
    # The same key twice
    ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
    ({"type": "object", "minProperties": 2, "required": ["a"]}, ['{"a":1,"b":2}'], ['{"a":1}', '{"a":1,"a":2}']),
    ({"properties": {name: {} for name in "abc"}, "minProperties": 1} | OBJECT, ['{"a":1}', '{"b":1,"c":1}'], ["{}"]),
    # A declared key with escapes
    ({"properties": {"a": {"type": "integer"}}}, ['{"a":1}', '{"b":"s"}', '{"":1}'], ['{"\\u0061":"s"}', '{"a":"s"}']),
    ({"properties": {"a/b": False}}, ["{}", '{"a":1}'], ['{"a\\/b":1}', '{"a/b":1}']),
    ({"properties": {'q"': {"type": "null"}}}, ['{"q\\"":null}', '{"q":1}'], ['{"q\\"":1}', '{"q\\u0022":1}']),
    ({"patternProperties": {"^b": {"type": "integer"}}}, ['{"b":1}', '{"c":"s"}'], ['{"\\u0062":"s"}', '{"b":"s"}']),
    # A class of characters without quotes
    ({"type": "string", "pattern": '^[^"]*$'}, ['"a"', '"\\\\"'], ['"\\""']),
    ({"type": "string", "pattern": r"^[^\\]+$"}, ['"a"', '"\\""'], ['"\\\\"']),
    # Characters of a class that are operators to llguidance
    ({"type": "string", "pattern": "^[^&&|x]+$"}, ['"a"', '"b;"'], ['"a&"', '"a|b"', '"x"']),
    ({"type": "string", "pattern": "^[a-z&&]$"}, ['"a"', '"&"'], ['"1"']),
    ({"type": "string", "pattern": "^[^~~]$"}, ['"a"'], ['"~"']),
    ({"type": "string", "pattern": "^[+--]$"}, ['"+"', '","', '"-"'], ['"."']),
    ({"type": "string", "pattern": r"^[a\-c-]$"}, ['"a"', '"-"', '"c"'], ['"b"']),
    ({"type": "string", "pattern": "^[^[]+$"}, ['"a"'], ['"["']),
    ({"type": "string", "pattern": "^[[a]]$"}, ['"a]"', '"[]"'], ['"a"']),
    # Alternatives of oneOf that only exclude each other because they are closed, by the way
    ({"oneOf": [{"type": "object", "properties": {name: {}}, "required": [name]} for name in "ab"]},
     ['{"a":1}', '{"b":1}'], ['{"a":1,"b":1}', "{}"]),
    # Recursive schemas, combined; items of older drafts
    ({"allOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/u"}], "$defs": LISTS},
     ['{"c":{"c":{"x":1},"x":1}}', "{}"], ['{"c":{}}', '{"c":{"c":{},"x":1}}']),
    ({"prefixItems": [{"type": "null"}], "additionalItems": False, "items": {"type": "string"}}, ["[null]"], ['["a"]']),
    ({"items": [{"type": "null"}], "additionalItems": False}, ["[null]", "[]"], ["[1]", "[null,1]"]),
    ({"minimum": 1, "exclusiveMinimum": True, "type": "integer"}, ["2"], ["1"]),
    ({"allOf": [{"multipleOf": 6}, {"multipleOf": 4}], "type": "integer"}, ["12", "0"], ["6", "8"]),
    ({"enum": [True, True]}, ["true"], ["false"]),
    ({"enum": ["a", "abc"], "maxLength": 2}, ['"a"'], ['"abc"']),
    ({"allOf": [{"enum": ["a", "bc", 1]}, {"minLength": 2}, {"type": "string"}]}, ['"bc"'], ['"a"', "1"]),
    ({"allOf": [{"uniqueItems": True}, {"uniqueItems": False}], "maxItems": 1}, ["[1]"], ["[1,1]"]),
)  # fmt: skip


# Schemas that combine others
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "kind": {"enum": ["+", "-"]}}}
TREE |= {"required": ["left", "kind"]}
COMBINED: tuple[tuple[Any, list[str], list[str]], ...] = (
    ({"items": {"not": {}}, "type": "array"}, ["[]"], ["[1]"]),
    ({"not": False, "if": {"type": "null"}, "type": "number"}, ["1"], ["null"]),
    ({"oneOf": [{"type": "number", "minimum": 2}, {"type": "number", "exclusiveMaximum": 2}, {"type": "null"}]},
     ["1", "2", "null"], ["true"]),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
      "$defs": {name: {"type": "object", "properties": {"t": {"const": name}}, "required": ["t"]} for name in "ab"}},
     ['{"t":"a"}', '{"t":"b"}'], ['{"t":"c"}', "{}"]),
    ({"dependentRequired": {"a": ["b"]}}, ['{"b":1}', '{"a":1,"b":1}', "1"], ['{"a":1}']),
    ({"dependentRequired": {"items": ["b"], "$schema": ["b"]}}, ['{"b":1}', '{"items":1,"b":1}'],
     ['{"items":1}', '{"$schema":1}']),
    ({"dependencies": {"items": ["b"], "default": {"$ref": "#/$defs/c"}}, "$defs": {"c": {"required": ["c"]}}},
     ['{"default":1,"c":1}'], ['{"items":1}', '{"default":1}']),
    ({"dependentSchemas": {"a": {"maxProperties": 1}}}, ['{"a":1}', '{"b":1,"c":1}'], ['{"a":1,"b":1}']),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
     ['{"a":null,"b":null}', "{}"], ['{"c":null}', '{"a":1}']),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"ab":1}'], ['{"A":1}', '{"":1}']),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, ['{"ab":1}', '{"\\n":1}'], ['{"abc":1}']),
    ({"properties": {"a": {}}, "unevaluatedProperties": {"type": "null"}}, ['{"a":1,"b":null}'], ['{"c":1}']),
    ({"allOf": [{"properties": {"a": {}}}], "additionalProperties": {"type": "null"}, "unevaluatedProperties": False},
     ['{"a":null,"b":null}'], ['{"a":1}']),
    ({"prefixItems": [{"type": "null"}], "unevaluatedItems": False}, ["[null]", "1"], ["[null,1]", "[1]"]),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]", "[]"], ["[1,1]"]),
    # Alternatives that refer to their union before they tell which they are
    ({"oneOf": [TREE, {"type": "object", "properties": {"kind": {"const": "n"}}, "required": ["kind"]}]},
     ['{"kind":"n"}', '{"left":{"kind":"n"},"kind":"+"}'], ['{"left":{"kind":"n"},"kind":"n"}', '{"kind":"+"}']),
    ({"$id": "https://a.b/c", "$ref": "d#n", "$defs": {"d": {"$id": "d", "items": {"$anchor": "n", "const": 1}}}},
     ["1"], ["2"]),
)  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), [*NOT_TAKEN, *COMBINED], ids=lambda one: str(one)[:60])
def test_what_is_valid_is_taken_and_nothing_else(schema: Any, right: list[str], wrong: list[str]) -> None:
    assert takes(schema, *right, *wrong) == [True] * len(right) + [False] * len(wrong)


NEVER = "^x is an invalid or unsupported JSON schema: no text can satisfy it"
REFUSED: dict[str, tuple[Any, ...]] = {
    NEVER: (
        False, {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"enum": []}, {"not": {}},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
    ),
    "const": ({"const": 2**53 + 1}, {"type": "array", "items": {"const": -(2**63)}}, {"const": {"a": 10**20}}),
    "enum": ({"enum": [1, 2**60 + 1]},),
    "minimum": ({"type": "integer", "minimum": 2**53 + 1},), "exclusiveMaximum": ({"exclusiveMaximum": -(2**60)},),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 10**9, "maximum": 10**9 + 0.5},),
    "minProperties": ({"type": "object", "minProperties": 2}, {"minProperties": 3, "required": ["a"]}),
    "uniqueItems": ({"uniqueItems": True},),
    "unevaluatedProperties": ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},),
    "unevaluatedItems": ({"anyOf": [{"prefixItems": [True]}, True], "unevaluatedItems": {"type": "null"}},),
    "contains": ({"contains": {"type": "null"}}, {"contains": True, "minContains": 0, "maxContains": 1}),
    "pattern": ({"type": "string", "pattern": r"^[\x00-\x1f!]$"}, {"pattern": "("}),
    "multipleOf": ({"multipleOf": 0},),
    "not": ({"not": {"type": "null"}}, {"properties": {"a": {"not": {"const": 1}}}}),
    "if": ({"if": {"type": "null"}, "then": False}, {"if": True, "else": True}),
    r"\$ref": ({"$ref": "#/$defs/none"}, {"$ref": "https://192.0.2.1/"}), "required": ({"required": [[]]},),
    r"\$dynamicRef": ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}},),
    r"\$recursiveRef": ({"items": {"$recursiveRef": "#"}},),
    "type": ({"type": "nonsense"}, {"type": 5}), "properties": ({"properties": []},), "anyOf": ({"anyOf": {}},),
    "oneOf": ({"oneOf": [{"multipleOf": i} for i in (2, 3)]}, {"oneOf": [{"type": "number"}, {"type": "integer"}]},
              {"oneOf": [{"minimum": 2}, {"maximum": 3}]}, {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    "minLength": ({"minLength": 1.5},),
    "propertyNames": ({"type": "object", "propertyNames": {"format": "date"}},),
    "too many cases": ({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]},),
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "schema"), [(said, one) for said, several in REFUSED.items() for one in several], ids=str
)
def test_what_cannot_be_enforced_is_refused_by_name(said: str, schema: Any) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        schema_grammar(json.dumps(schema), "x")
    assert "\n" not in str(refused.value)


def test_what_never_ends_is_left_out() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}, "b": {}}, "$defs": {"e": endless}}
    assert takes(schema, '{"b":1}', "{}", '{"a":{}}') == [True, True, False]


def test_parameters_of_tools_that_cannot_be_enforced() -> None:
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True, "type": "array"}}}
    assert '"uniqueItems"' in schemas_grammar([schema], "x", n_lenient=1)
    with pytest.raises(UsageError, match="no text can satisfy it"):
        schemas_grammar([schema | {"required": ["b"], "additionalProperties": False}], "x", n_lenient=1)


def test_the_check_computes_a_mask() -> None:
    """llguidance accepts what refers to itself only."""
    with pytest.raises(UsageError, match="no text can satisfy it"):
        schemas_grammar([{"type": "null"}], "x", ['start: %json {"$ref": "#"}'])
