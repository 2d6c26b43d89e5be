"""JSON schemas as llguidance is given them: rewritten into what it enforces."""

import functools
import json
import re
from typing import Any

# As in llama.cpp's grammars of schemas: without a limit, a model may write spaces to the end.
_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,20})?", "json_allow_general_unicode_escapes": True}
_VALUES = {"enum", "const", "default", "examples"}  # not schemas
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # objects of schemas
_OPEN = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
_EXTENDS = {"allOf", "anyOf", "oneOf", "$ref"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_UNKNOWN_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # look-around, references
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
# llguidance enforces these, but takes leap seconds at any time, and 29 February in any year.
_FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
_LEAP_YEAR = "..(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00"
_DAY = f"^(?:{_LEAP_YEAR}|.{{5}}(?:1|0[^2]|02-(?:[01]|2[^9])))"
_PATTERNS = {"date": [_DAY], "time": ["^.{6}[0-5]"], "date-time": [_DAY, "^.{17}[0-5]"]} | {
    f"uuid{version}": [f"^.{{14}}{version}.{{4}}[89abAB]"] for version in range(1, 9)
}  # the last are pydantic's
# With these values, in JSON, a keyword says nothing about a text.
_NOTHING = {
    "uniqueItems": ("false",), "not": ("false",), "minLength": ("0",), "minItems": ("0",), "minProperties": ("0",),
    "propertyNames": ("true", "{}", '{"type": "string"}'), "unevaluatedProperties": ("true", "{}"),
    "unevaluatedItems": ("true", "{}"), "dependentRequired": ("{}",),
}  # fmt: skip
_LENIENT = {"lenient": True, "coerce_one_of": True}


def rewritten(schema: object, *, is_lenient: bool = False) -> Any:
    """A schema of the same texts, which llguidance may enforce; `is_lenient`: what it does not know is ignored.

    Raises RecursionError if it is nested too deeply.
    """
    found = _usual(schema, is_lenient=is_lenient, closes=not _combines(schema))
    if isinstance(found, dict):
        found["x-guidance"] = _OPTIONS | (_LENIENT if is_lenient else {})
    return found


def _usual(schema: Any, *, is_lenient: bool, closes: bool) -> Any:
    """A copy that `closes` what it calls an object, as llama.cpp and OpenAI's API do: no properties that it lacks.

    `is_lenient`: without patterns and bounds that llguidance refuses.
    """
    usual = functools.partial(_usual, is_lenient=is_lenient, closes=closes)
    if isinstance(schema, list):
        return [usual(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    patterns: list[dict[str, Any]] = []
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            found[key] = {name: usual(one) for name, one in value.items()}
        elif key != "$schema" and not (is_lenient and _is_refused(key, value)):
            found |= _plain(key, value if key in _VALUES else usual(value))
            if key == "format" and isinstance(value, str) and value in _PATTERNS:
                patterns += [{"pattern": pattern} for pattern in _PATTERNS[value]]
    if patterns and isinstance(several := found.get("allOf", []), list):
        found["allOf"] = several + patterns
    types, names, required = found.get("type"), found.get("properties"), found.get("required", [])
    is_object = types == "object" or (isinstance(types, list) and "object" in types)
    if not (closes and is_object and isinstance(names, dict) and isinstance(required, list)) or schema.keys() & _OPEN:
        return found
    has_all = all(isinstance(name, str) and name in names for name in required)
    return found | {"additionalProperties": False} if has_all else found


def _plain(key: str, value: Any) -> dict[str, Any]:
    """A keyword as llguidance accepts it, or nothing if it changes nothing."""
    if key == "format" and isinstance(value, str):  # 2020-12 takes formats as notes
        known = "uuid" if value.startswith("uuid") and value in _PATTERNS else value
        return {key: known} if known in _FORMATS else {}
    if key in _COUNTS and isinstance(value, float) and value.is_integer():
        value = int(value)
    # Some clients write null for what is absent.
    is_absent = value is None and key != "const"
    return {} if is_absent or (key in _NOTHING and json.dumps(value) in _NOTHING[key]) else {key: value}


def _combines(schema: Any) -> bool:
    """Whether some object may get properties from several places of the schema, none of which can be closed then."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    several = schema.get("allOf")
    is_extended = _EXTENDS & schema.keys() and {"properties", "required"} & schema.keys()
    return bool(is_extended) or (isinstance(several, list) and len(several) > 1) or any(map(_combines, schema.values()))


def _is_refused(key: str, value: object) -> bool:
    if key == "pattern":
        return isinstance(value, str) and _UNKNOWN_PATTERN.search(value) is not None
    return key in _BOUNDS and isinstance(value, int | float) and abs(value) >= 2**63
