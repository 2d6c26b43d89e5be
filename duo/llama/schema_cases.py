"""Cases: a JSON schema as a union of alternatives, of one type each and without combinations of schemas.

llguidance combines few schemas, and not all of those exactly. Alternatives are easily combined: of two schemas, both
hold where an alternative of each does.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

from duo.llama.schema_documents import CLOSED, Documents, Unsupported

# What the keywords of a schema say of values of one type, without those that combine schemas. Numbers are fractions,
# "pattern" and "format" are lists. "low" and "high" are the bounds of a number: its value, which is negated in "high",
# and whether it is exclusive: of two, the larger one is the stricter.
Alternative = dict[str, Any]
Cases = dict[str, list[Alternative]]  # by type: one of them holds

MOST = 2**53  # llguidance computes with doubles
_MOST_PAIRS = 30_000  # of alternatives
_COUNTS = {f"{side}{of}" for side in ("min", "max") for of in ("Length", "Items", "Properties")}
_BOUNDS = {
    "minimum": ("low", 1), "exclusiveMinimum": ("low", 1), "maximum": ("high", -1), "exclusiveMaximum": ("high", -1),
}  # fmt: skip
_LISTS = {"pattern", "format"}
_NO_RULE = ("uniqueItems", False)
_KEYWORDS = {
    "number": {*_BOUNDS, "multipleOf"},
    "string": {"minLength", "maxLength", *_LISTS},
    "array": {"minItems", "maxItems", "prefixItems", "items", "uniqueItems"},
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
               CLOSED},
    "boolean": set(), "null": set(),
}  # fmt: skip
_UNSUPPORTED = {
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "not", "if",
}  # as Documents leaves them  # fmt: skip
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
_VALUES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*sorted(_COUNTS), *_BOUNDS, "multipleOf", "minContains", "maxContains"), (int, float)),
    **dict.fromkeys(("properties", "patternProperties", *_DEPENDENT), (dict,)),
    **dict.fromkeys(("required", "prefixItems", "allOf", "anyOf", "oneOf", "enum"), (list,)),
    **dict.fromkeys(("pattern", "format", "$ref"), (str,)),
    "type": (str, list), "uniqueItems": (bool,),
}  # fmt: skip


class _Circular(Unsupported):
    """A reference to itself, without anything between."""


class Schema:
    """A schema whose cases are computed."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[tuple[str, bool], Cases] = {}
        self._n_pairs = 0
        self._referring: list[str] = []  # references that are being followed

    def cases(self, schema: Any, *, closes: bool = True) -> Cases:
        """The cases of a part. Raises Unsupported, RecursionError."""
        if schema is False:
            return {}
        if not isinstance(schema, dict | bool):
            raise Unsupported("a schema must be an object or a boolean")
        if schema is True:
            return {kind: [{}] for kind in _KEYWORDS}
        key = (json.dumps(schema), closes)
        if key not in self._known:
            self._known[key] = self._found(schema, closes)
        return self._known[key]

    def _found(self, schema: Any, closes: bool) -> Cases:
        for key, kinds in _VALUES.items():
            given = schema.get(key, ...)
            if given is not ... and (not isinstance(given, kinds) or (isinstance(given, bool) and kinds != (bool,))):
                raise Unsupported(f"{key}: {json.dumps(given)[:50]} is no {kinds[0].__name__}")
        for key in _UNSUPPORTED & schema.keys():
            raise Unsupported(key)
        self._n_pairs += 1
        return functools.reduce(self._all, self._parts(schema, closes), self._own(schema, closes))

    def _parts(self, schema: dict[str, Any], closes: bool) -> Iterator[Cases]:
        """The cases of each keyword that combines schemas."""
        cases = functools.partial(self.cases, closes=closes)
        yield from map(cases, schema.get("allOf", ()))
        if "$ref" in schema:
            yield self._of_reference(schema["$ref"], cases)
        if "propertyNames" in schema:
            yield self._named(schema["propertyNames"])
        if "anyOf" in schema:
            yield self._union(map(cases, schema["anyOf"]))
        if "oneOf" in schema:
            yield self._one(schema["oneOf"], cases)
        for name, more in [pair for key in _DEPENDENT for pair in schema.get(key, {}).items()]:
            needed = cases({"required": more} if isinstance(more, list) else more)
            has_name = self._all(self.cases({"required": [name]}), needed)
            yield self._union([self.cases({"properties": {name: False}}), has_name])

    def _of_reference(self, address: str, cases: Callable[[Any], Cases]) -> Cases:
        if address in self._referring:
            raise _Circular(f"no text can satisfy it: $ref {address or '#'} refers to itself")
        self._referring.append(address)
        try:
            return cases(self._documents.referred(address))
        finally:
            self._referring.pop()

    def _own(self, schema: dict[str, Any], closes: bool) -> Cases:
        """The cases of the other keywords."""
        if "contains" in schema and (schema.get("minContains") != 0 or "maxContains" in schema):
            raise Unsupported("contains")
        kinds = schema.get("type", [*_KEYWORDS])
        found: Cases = {}
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            of = "number" if kind == "integer" else kind
            if not isinstance(of, str) or of not in _KEYWORDS:
                raise Unsupported(f"type: there is no type {json.dumps(kind)[:50]}")
            own: Alternative = {"integer": True} if kind == "integer" else {}
            for key in [key for key in schema if key in _KEYWORDS[of]]:
                name, value = _parsed(key, schema[key])
                own[name] = _combined(name, own[name], value) if name in own else value
            if own.pop(CLOSED, False):  # beside it, llguidance finds what it means
                own.pop("additionalProperties", None)
                own |= {CLOSED: True} if closes else {}
            found.setdefault(of, []).append({key: value for key, value in own.items() if (key, value) != _NO_RULE})
        several = [schema["enum"]] if "enum" in schema else []
        several += [[schema["const"]]] if "const" in schema else []
        return functools.reduce(self._all, map(_constants, several), found)

    def _named(self, names: Any) -> Cases:
        """Objects whose properties have `names`."""
        some, found = self.cases(names).get("string", []), self.cases(True)
        if {} in some:
            return found
        parts: Alternative = {"properties": dict.fromkeys((name for one in some for name in one.get("enum", ())), True)}
        for one in some:
            if one.keys() == {"enum"}:
                continue
            is_pattern = one.keys() == {"pattern"} and len(one["pattern"]) == 1
            if len(some) > 1 or not (is_pattern or one.keys() <= {"minLength", "maxLength"}):
                raise Unsupported("propertyNames")
            of_length = rf"^[\s\S]{{{one.get('minLength', 0)},{one.get('maxLength', '')}}}$"
            parts = {"patternProperties": {one.get("pattern", [of_length])[0]: True}}
        return found | {"object": [parts | {"additionalProperties": False}]}

    def _one(self, schemas: list[Any], cases: Callable[[Any], Cases]) -> Cases:
        """One of several, of which no two may hold at once: then it is any of them."""
        for one, other in itertools.permutations(schemas, 2):
            if not self._is_empty(self._all(cases(one), self.cases(other, closes=False))):
                raise Unsupported("oneOf: several may hold at once: use anyOf")
        return self._union(map(cases, schemas))

    def _is_empty(self, cases: Cases, depth: int = 3) -> bool:
        """Whether nothing can match, as far as `depth` levels show."""
        return all(depth and self._lacks(one, depth) for some in cases.values() for one in some)

    def _lacks(self, one: Alternative, depth: int) -> bool:
        parts = [of_property(one, name) for name in one.get("required", ())]
        for part in parts + [*one.get("prefixItems", ())][: one.get("minItems", 0)]:
            with suppress(_Circular):  # a property of what is being computed
                if self._is_empty(self.cases(part, closes=False), depth - 1):
                    return True
        return False

    def _union(self, ways: Iterable[Cases]) -> Cases:
        found: Cases = {}
        for way in ways:
            for kind, some in way.items():
                found.setdefault(kind, []).extend(some)
        return {kind: _distinct(some) for kind, some in found.items()}

    def _all(self, first: Cases, second: Cases) -> Cases:
        found: Cases = {}
        for kind in first.keys() & second.keys():
            self._n_pairs += len(first[kind]) * len(second[kind])
            if self._n_pairs > _MOST_PAIRS:
                raise Unsupported("anyOf or oneOf: together, they have too many cases")
            pairs = (_merged(one, other) for one, other in itertools.product(first[kind], second[kind]))
            found[kind] = _distinct(one for one in pairs if one is not None)
        return found


def _distinct(some: Iterable[Alternative]) -> list[Alternative]:
    found = {repr(one): one for one in some}
    return [{}] if "{}" in found else [*found.values()]


def both(first: Any, second: Any) -> Any:
    """A schema of what matches two."""
    parts: dict[str, Any] = {}
    for schema in (first, second):
        for part in schema["allOf"] if isinstance(schema, dict) and schema.keys() == {"allOf"} else [schema]:
            if part is not True and part != {}:
                parts[json.dumps(part)] = part
    several = [*parts.values()]
    return several[0] if len(several) == 1 else {"allOf": several} if several else True


def _matches(pattern: str, text: str) -> bool:
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
    about += [part for pattern, part in one.get("patternProperties", {}).items() if _matches(pattern, name)]
    return functools.reduce(both, about, True) if about else others(one)


def _parsed(key: str, value: Any) -> tuple[str, Any]:
    """The name and the value of a keyword in an alternative. Raises Unsupported."""
    if key in _BOUNDS:
        name, sign = _BOUNDS[key]
        return name, (sign * Fraction(str(value)), key.startswith("exclusive"))
    if key in _COUNTS or key == "multipleOf":
        number = Fraction(str(value))
        if number < 0 or (number == 0 if key == "multipleOf" else number.denominator > 1):
            raise Unsupported(f"{key}: it cannot be {value}")
        return key, number if key == "multipleOf" else int(number)
    if key == "required":
        if not all(isinstance(name, str) for name in value):
            raise Unsupported("required: a name must be text")
        return key, list(dict.fromkeys(value))
    return key, [value] if key in _LISTS else value


def _constants(values: list[Any]) -> Cases:
    """The cases of constants."""
    found: Cases = {}
    enums: dict[str, dict[Any, None]] = {}
    for value in values:
        match value:
            case dict():
                of: Alternative = {"properties": {name: {"const": one} for name, one in value.items()}}
                found.setdefault("object", []).append(of | {"required": [*value], "additionalProperties": False})
            case list():
                items = [{"const": one} for one in value]
                found.setdefault("array", []).append({"prefixItems": items, "items": False, "minItems": len(value)})
            case None:
                found["null"] = [{}]
            case bool() | str():
                enums.setdefault("boolean" if isinstance(value, bool) else "string", {})[value] = None
            case _ if abs(value) > MOST:
                raise Unsupported(f"const or enum: llguidance rounds {value}")
            case _:
                enums.setdefault("number", {})[Fraction(str(value))] = None
    return found | {kind: [{"enum": [*some]}] for kind, some in enums.items()}


def _merged(first: Alternative, second: Alternative) -> Alternative | None:
    """The alternative of what matches two; None: the two contradict each other. Raises Unsupported."""
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
            if not isinstance(others(one), bool) and any(itertools.starmap(_matches, several)):
                raise Unsupported("patternProperties or propertyNames, of names that are declared")
    if "enum" in found:
        values = [value for value in found["enum"] if _allows(found, value)]
        found = {key: value for key, value in found.items() if key in {"enum", *_LISTS}} | {"enum": values}
    return found if _is_possible(found) else None


def _combined(key: str, one: Any, other: Any) -> Any:
    if key in _COUNTS or key in ("low", "high"):
        return min(one, other) if key.startswith("max") else max(one, other)
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
    bounds, of = ((one.get("low"), value), (one.get("high"), -value)), one.get("multipleOf", value)
    return (
        all(bound is None or (number, False) >= bound for bound, number in bounds)
        and not ("integer" in one and value.denominator > 1)
        and (not value or (value / of).denominator == 1)
    )


def _is_possible(one: Alternative) -> bool:
    """Whether an alternative does not obviously contradict itself."""
    bounds = [one[key] for key in ("low", "high") if key in one]
    width, is_closed = -sum(value for value, _ in bounds), not any(is_exclusive for _, is_exclusive in bounds)
    return not (
        one.get("enum") == []
        or any(one.get(f"min{of}", 0) > one.get(f"max{of}", math.inf) for of in ("Length", "Items", "Properties"))
        or (one.get("items") is False and one.get("minItems", 0) > len(one.get("prefixItems", ())))
        or (len(bounds) == 2 and (width, is_closed) < (0, True))
        or any(of_property(one, name) is False for name in one.get("required", ()))
    )
