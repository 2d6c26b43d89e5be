"""Cases: a JSON schema as a union of alternatives, of one type each and without combinations of schemas.

llguidance combines few schemas, and not all of those exactly. Alternatives are easily combined: of two schemas, both
hold where an alternative of each does.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from duo.llama import schema_alternatives as alternatives
from duo.llama.schema_alternatives import LOWER, UPPER, Alternative
from duo.llama.schema_documents import CLOSED, Documents, Unsupported

Cases = dict[str, list[Alternative]]  # by type: one of them holds

_MOST = 30_000  # pairs of alternatives
_KEYWORDS = {
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "array": {"minItems", "maxItems", "prefixItems", "items", "uniqueItems"},
    "object": {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
               CLOSED},
    "boolean": set(), "null": set(),
}  # fmt: skip
_UNSUPPORTED = {
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "not",
    "if",
}  # as Documents leaves them
_DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies")
_VALUES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(LOWER | UPPER | {"multipleOf", "minContains", "maxContains"}, (int, float)),
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
        """What the keywords say that combine schemas."""
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
        """What its own keywords say, without those that combine schemas."""
        if "contains" in schema and (schema.get("minContains") != 0 or "maxContains" in schema):
            raise Unsupported("contains")
        kinds = schema.get("type", [*_KEYWORDS])
        found: Cases = {}
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            of = "number" if kind == "integer" else kind
            if not isinstance(of, str) or of not in _KEYWORDS:
                raise Unsupported(f"type: there is no type {json.dumps(kind)[:50]}")
            own = {key: alternatives.parsed(key, schema[key]) for key in schema if key in _KEYWORDS[of]}
            if own.pop(CLOSED, False):  # beside it, llguidance finds what it means
                own.pop("additionalProperties", None)
                own |= {CLOSED: True} if closes else {}
            if not own.get("uniqueItems"):
                own.pop("uniqueItems", None)
            own |= {"integer": True} if kind == "integer" else {}
            found.setdefault(of, []).append(own)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if "const" in schema and "enum" in schema:
            found = self._all(found, alternatives.constants(schema["enum"]))
        return found if values is None else self._all(found, alternatives.constants(values))

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
        parts = [alternatives.of_property(one, name) for name in one.get("required", ())]
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
            if self._n_pairs > _MOST:
                raise Unsupported("anyOf or oneOf: together, they have too many cases")
            pairs = (alternatives.merged(one, other) for one, other in itertools.product(first[kind], second[kind]))
            found[kind] = _distinct(one for one in pairs if one is not None)
        return found


def _distinct(some: Iterable[Alternative]) -> list[Alternative]:
    found = {repr(one): one for one in some}
    return [{}] if "{}" in found else [*found.values()]
