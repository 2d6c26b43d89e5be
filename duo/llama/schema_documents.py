"""Documents: a JSON schema as it is read: what says nothing is left out, and older drafts are written as 2020-12."""

import re
from typing import Any
from urllib.parse import unquote, urljoin

VALUES = {"enum", "const", "default", "examples"}  # not schemas
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired",
         "dependencies"}  # objects of schemas, or of lists of names  # fmt: skip
CLOSED = "x-closed"  # an object without other properties than those that its schema names
_OPEN = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
_COMBINING = {"allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas", "dependencies"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_UNKNOWN_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # look-around, references
# llguidance enforces these, but takes leap seconds at any time, and 29 February in any year.
_FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
_LEAP_YEAR = "..(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00"
_DAY = f"^(?:{_LEAP_YEAR}|.{{5}}(?:1|0[^2]|02-(?:[01]|2[^9])))"
_PATTERNS = {"date": [_DAY], "time": ["^.{6}[0-5]"], "date-time": [_DAY, "^.{17}[0-5]"]} | {
    f"uuid{version}": [f"^.{{14}}{version}.{{4}}[89abAB]"] for version in range(1, 9)
}  # the last are pydantic's


class Unsupported(Exception):
    """What cannot be enforced, beginning with the keyword."""


class Documents:
    """A schema with absolute references, and its parts by their addresses.

    What it calls an object is closed, as in llama.cpp and OpenAI's API: no properties that it lacks. `is_lenient`:
    oneOf is anyOf, and patterns and bounds that llguidance refuses are left out.
    """

    def __init__(self, schema: Any, *, is_lenient: bool) -> None:
        """Raises RecursionError if it is nested too deeply."""
        self._is_lenient = is_lenient
        self._closes = not _combines(schema)
        self._parts: dict[str, Any] = {}
        self.root = self._read(schema, "")
        self._parts.setdefault("", self.root)

    def _read(self, schema: Any, base: str) -> Any:
        if isinstance(schema, list):
            return [self._read(one, base) for one in schema]
        if not isinstance(schema, dict):
            return schema
        found: dict[str, Any] = {}
        if isinstance(name := schema.get("$id"), str):
            address = _joined(base, name)
            base = address.partition("#")[0]
            self._parts[address if name.startswith("#") else base] = found
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                self._parts[f"{base}#{name}"] = found
        for key, value in schema.items():
            if key == "$schema" or (value is None and key != "const") or (self._is_lenient and _is_refused(key, value)):
                continue  # some clients write null for what is absent
            if key in NAMED and isinstance(value, dict):
                found[key] = {name: self._read(one, base) for name, one in value.items()}
            elif key == "$ref" and isinstance(value, str):
                found[key] = _joined(base, value)
            else:
                found[key] = value if key in VALUES else self._read(value, base)
        _renew(found)
        if self._is_lenient and "oneOf" in found and "anyOf" not in found:
            found["anyOf"] = found.pop("oneOf")
        if self._closes and _has_all(found):
            found |= {"additionalProperties": False, CLOSED: True}
        return found

    def referred(self, address: str) -> Any:
        """What the reference to an address is. Raises Unsupported."""
        base, _, fragment = address.partition("#")
        is_pointer = not fragment or fragment.startswith("/")
        part = self._parts.get(base if is_pointer else address)
        for name in unquote(fragment).split("/")[1:] if is_pointer else ():
            if isinstance(part, list):
                part = dict(zip(map(str, range(len(part))), part, strict=True))
            part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
        if not isinstance(part, dict | bool):
            raise Unsupported(f"$ref: the schema has no {address or '#'}")
        return part


def _joined(base: str, address: str) -> str:
    return base + address if address.startswith("#") else urljoin(base, address)


def _renew(schema: dict[str, Any]) -> None:
    """Write formats, and what older drafts write otherwise, with keywords that are enforced."""
    if isinstance(name := schema.get("format"), str):  # 2020-12 takes formats as notes
        of = "uuid" if name.startswith("uuid") and name in _PATTERNS else schema.pop("format")
        schema |= {"format": of} if of in _FORMATS else {}
        if name in _PATTERNS and isinstance(several := schema.get("allOf", []), list):
            schema["allOf"] = several + [{"pattern": pattern} for pattern in _PATTERNS[name]]
    for key in ("minimum", "maximum"):
        exclusive = f"exclusive{key.capitalize()}"
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and key in schema:
            schema[exclusive] = schema.pop(key)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema["items"]
        schema["items"] = schema.get("additionalItems", True)
    if schema.get("not") in (True, False, {}) and isinstance(several := schema.get("allOf", []), list):
        schema["allOf"] = [*several, schema.pop("not") is False]  # zod's never
    for key, given in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        is_local = given in schema or not schema.keys() & _COMBINING
        if key in schema and (is_local or schema[key] in (True, {})):
            schema.setdefault(given, schema.pop(key))
    if "then" not in schema and "else" not in schema:
        schema.pop("if", None)


def _has_all(schema: dict[str, Any]) -> bool:
    """Whether a schema says that it is an object, names all properties, and says nothing of others."""
    types, names, required = schema.get("type"), schema.get("properties"), schema.get("required", [])
    is_object = types == "object" or (isinstance(types, list) and "object" in types)
    if not (is_object and isinstance(names, dict) and isinstance(required, list)) or schema.keys() & _OPEN:
        return False
    return all(isinstance(name, str) and name in names for name in required)


def _combines(schema: Any) -> bool:
    """Whether some object may get properties from several places of the schema, none of which can be closed then."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    several = schema.get("allOf")
    is_extended = schema.keys() & (_COMBINING | {"then", "else"}) and {"properties", "required"} & schema.keys()
    return bool(is_extended) or (isinstance(several, list) and len(several) > 1) or any(map(_combines, schema.values()))


def _is_refused(key: str, value: object) -> bool:
    if key == "pattern":
        return isinstance(value, str) and _UNKNOWN_PATTERN.search(value) is not None
    return key in _BOUNDS and isinstance(value, int | float) and abs(value) >= 2**63
