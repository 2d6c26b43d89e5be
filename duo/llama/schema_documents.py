"""Documents: the parts of a JSON schema, by the addresses that references have."""

from collections import Counter
from typing import Any
from urllib.parse import unquote, urljoin

VALUES = {"enum", "const", "default", "examples"}  # not schemas
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired",
         "dependencies"}  # objects of schemas, or of lists of names  # fmt: skip
_COMBINING = {"allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "dependentSchemas", "dependencies"}


class Unsupported(Exception):
    """What cannot be enforced, beginning with the keyword."""


class Documents:
    """A schema as draft 2020-12 writes it, with absolute references. `is_lenient`: oneOf is anyOf."""

    def __init__(self, schema: Any, *, is_lenient: bool) -> None:
        """Raises RecursionError if it is nested too deeply."""
        self._is_lenient = is_lenient
        self._parts: dict[str, Any] = {}
        self._dynamic: Counter[str] = Counter()
        self.root = self._absolute(schema, "")
        self._parts.setdefault("", self.root)

    def _absolute(self, schema: Any, base: str) -> Any:
        if isinstance(schema, list):
            return [self._absolute(one, base) for one in schema]
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
                self._dynamic[name] += key == "$dynamicAnchor"
        for key, value in schema.items():
            if key in NAMED and isinstance(value, dict):
                found[key] = {name: self._absolute(one, base) for name, one in value.items()}
            elif key in ("$ref", "$dynamicRef") and isinstance(value, str):
                found[key] = _joined(base, value)
            else:
                found[key] = value if key in VALUES else self._absolute(value, base)
        self._renew(found)
        return found

    def _renew(self, schema: dict[str, Any]) -> None:
        for key in ("minimum", "maximum"):
            exclusive = f"exclusive{key.capitalize()}"
            if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and key in schema:
                schema[exclusive] = schema.pop(key)
        if isinstance(schema.get("items"), list):
            schema["prefixItems"] = schema["items"]
            schema["items"] = schema.get("additionalItems", True)
        for key, given in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            is_local = given in schema or not schema.keys() & _COMBINING
            if key in schema and (is_local or schema[key] in (True, {})):
                schema.setdefault(given, schema.pop(key))
        if self._is_lenient and "oneOf" in schema and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")

    def referred(self, key: str, address: str) -> Any:
        """What the reference `key` to an address is. Raises Unsupported."""
        base, _, fragment = address.partition("#")
        is_pointer = not fragment or fragment.startswith("/")
        part = self._parts.get(base if is_pointer else address)
        for name in unquote(fragment).split("/")[1:] if is_pointer else ():
            if isinstance(part, list):
                part = dict(zip(map(str, range(len(part))), part, strict=True))
            part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
        if not isinstance(part, dict | bool):
            raise Unsupported(f"{key}: the schema has no {address or '#'}")
        # Which of several is meant depends on the references that led here.
        is_dynamic = key == "$dynamicRef" and isinstance(part, dict) and part.get("$dynamicAnchor") == fragment
        if is_dynamic and self._dynamic[fragment] > 1:
            raise Unsupported(f"{key}: there are several $dynamicAnchor {fragment!r}")
        return part


def _joined(base: str, address: str) -> str:
    return base + address if address.startswith("#") else urljoin(base, address)
