"""Alternatives: what a JSON schema says about values of one type, and how two are combined."""

import functools
import itertools
import json
import math
import re
from fractions import Fraction
from typing import Any

from duo.llama.schema_documents import CLOSED, Unsupported

# Keywords of a schema, without those that combine schemas. Numbers are fractions, "pattern" and "format" are lists.
Alternative = dict[str, Any]

LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
MOST = 2**53  # llguidance computes with doubles
_LISTS = {"pattern", "format"}
_OF_ENUM = {"enum", "pattern", "format"}


def both(first: Any, second: Any) -> Any:
    """A schema of what matches two."""
    parts: dict[str, Any] = {}
    for schema in (first, second):
        for part in schema["allOf"] if isinstance(schema, dict) and schema.keys() == {"allOf"} else [schema]:
            if part is not True and part != {}:
                parts[json.dumps(part)] = part
    several = [*parts.values()]
    return several[0] if len(several) == 1 else {"allOf": several} if several else True


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is in a text. Raises Unsupported."""
    try:
        return re.search(pattern, text, re.ASCII) is not None
    except re.error as error:
        raise Unsupported(f"pattern or patternProperties: {pattern!r}: {error}") from None


def others(one: Alternative) -> Any:
    """The schema of the properties that an object does not name."""
    return False if CLOSED in one else one.get("additionalProperties", True)


def of_property(one: Alternative, name: str) -> Any:
    """The schema of a property of an object."""
    about = [one["properties"][name]] if name in one.get("properties", {}) else []
    about += [part for pattern, part in one.get("patternProperties", {}).items() if matches(pattern, name)]
    return functools.reduce(both, about, True) if about else others(one)


def parsed(key: str, value: Any) -> Any:
    """A keyword's value in an alternative. Raises Unsupported."""
    if key in LOWER | UPPER | {"multipleOf"}:
        number, is_count = Fraction(str(value)), key.endswith(("Length", "Items", "Properties"))
        if (is_count and (number < 0 or number.denominator > 1)) or (key == "multipleOf" and number <= 0):
            raise Unsupported(f"{key}: it cannot be {value}")
        return int(number) if is_count else number
    if key == "required":
        if not all(isinstance(name, str) for name in value):
            raise Unsupported("required: a name must be text")
        return list(dict.fromkeys(value))
    return [value] if key in _LISTS else value


def constants(values: list[Any]) -> dict[str, list[Alternative]]:
    """Alternatives of constants, by type."""
    found: dict[str, list[Alternative]] = {}
    for value in values:
        if isinstance(value, dict):
            of: Alternative = {"properties": {name: {"const": one} for name, one in value.items()}}
            found.setdefault("object", []).append(of | {"required": [*value], "additionalProperties": False})
        elif isinstance(value, list):
            items = [{"const": one} for one in value]
            found.setdefault("array", []).append({"prefixItems": items, "items": False, "minItems": len(value)})
        elif value is None:
            found["null"] = [{}]
        else:
            kind = "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
            some = found.setdefault(kind, [{"enum": {}}])[0]["enum"]
            if kind == "number" and abs(value) > MOST:
                raise Unsupported(f"const or enum: llguidance rounds {value}")
            some[Fraction(str(value)) if kind == "number" else value] = True
    return {
        kind: [one | {"enum": [*one["enum"]]} if "enum" in one else one for one in some] for kind, some in found.items()
    }


def merged(first: Alternative, second: Alternative) -> Alternative | None:
    """What both say; None: they contradict each other. Raises Unsupported."""
    found = first | second | {key: _combined(key, first[key], second[key]) for key in first.keys() & second.keys()}
    if {"prefixItems", "items"} & found.keys():
        n = max(len(one.get("prefixItems", ())) for one in (first, second))
        parts = [(*one.get("prefixItems", ()), *[one.get("items", True)] * n)[:n] for one in (first, second)]
        found["prefixItems"] = [both(*pair) for pair in zip(*parts, strict=True)]
        found["items"] = both(first.get("items", True), second.get("items", True))
    for key, of in (("properties", of_property), ("patternProperties", _of_pattern)):
        names = dict.fromkeys([*first.get(key, ()), *second.get(key, ())])
        found |= {key: {name: both(of(first, name), of(second, name)) for name in names}} if names else {}
    if "patternProperties" in found:
        patterns = found["patternProperties"]
        is_closed = others(found) is False  # what the patterns do not allow is not allowed without them
        found["patternProperties"] = {key: one for key, one in patterns.items() if not (is_closed and one is False)}
        for one, other in ((first, second), (second, first)):
            several = itertools.product(other.get("patternProperties", ()), one.get("properties", ()))
            if not isinstance(others(one), bool) and any(itertools.starmap(matches, several)):
                raise Unsupported("patternProperties or propertyNames, of names that are declared")
    if "enum" in found:
        values = [value for value in found["enum"] if _allows(found, value)]
        found = {key: value for key, value in found.items() if key in _OF_ENUM} | {"enum": values}
    return found if is_possible(found) else None


def _combined(key: str, one: Any, other: Any) -> Any:
    if key in LOWER | UPPER:
        return max(one, other) if key in LOWER else min(one, other)
    if key == "multipleOf":
        return Fraction(math.lcm(one.numerator, other.numerator), math.gcd(one.denominator, other.denominator))
    if key == "enum":
        return [*filter(set(other).__contains__, one)]
    if key == "additionalProperties":
        return both(one, other)
    if key in _LISTS | {"required"}:
        return [*dict.fromkeys(one + other)]
    return one + other if isinstance(one, list) else one


def _of_pattern(one: Alternative, pattern: str) -> Any:
    return one.get("patternProperties", {}).get(pattern, others(one))


def _allows(one: Alternative, value: Any) -> bool:
    """Whether a constant is not excluded by what is known without patterns and formats."""
    if isinstance(value, str):
        return bool(one.get("minLength", 0) <= len(value) <= one.get("maxLength", math.inf))
    if isinstance(value, bool):
        return True
    of = one.get("multipleOf", value)
    return (
        one.get("minimum", value) <= value <= one.get("maximum", value)
        and one.get("exclusiveMinimum", -math.inf) < value < one.get("exclusiveMaximum", math.inf)
        and not ("integer" in one and value.denominator > 1)
        and (not value or (value / of).denominator == 1)
    )


def is_possible(one: Alternative) -> bool:
    """Whether it does not obviously contradict itself."""
    if one.get("enum") == []:
        return False
    if any(one.get(f"min{of}", 0) > one.get(f"max{of}", math.inf) for of in ("Length", "Items", "Properties")):
        return False
    if one.get("items") is False and one.get("minItems", 0) > len(one.get("prefixItems", ())):
        return False
    low = max(one.get("minimum", -math.inf), one.get("exclusiveMinimum", -math.inf))
    high = min(one.get("maximum", math.inf), one.get("exclusiveMaximum", math.inf))
    if low > high or (low == high and (low == one.get("exclusiveMinimum") or high == one.get("exclusiveMaximum"))):
        return False
    return not any(of_property(one, name) is False for name in one.get("required", ()))
