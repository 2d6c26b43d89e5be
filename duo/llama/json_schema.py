"""JSON schemas as llguidance is given them: rewritten into what it enforces."""

import functools
import re
from typing import Any

from duo.llama.schema_alternatives import CLOSED
from duo.llama.schema_documents import NAMED, VALUES, Unsupported
from duo.llama.schema_forms import form

# As in llama.cpp's grammars of schemas: without a limit, a model may write spaces to the end.
_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,20})?", "json_allow_general_unicode_escapes": True}
_OPEN = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
_EXTENDS = {"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "then", "else", "dependentSchemas", "dependencies"}
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_UNKNOWN_PATTERN = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # look-around, references
_NO_ESCAPES = {"json_allow_general_unicode_escapes": False, "json_allowed_escapes": 'nrbtf"\\'}
# llguidance enforces these, but takes leap seconds at any time, and 29 February in any year.
_FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
_LEAP_YEAR = "..(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00"
_DAY = f"^(?:{_LEAP_YEAR}|.{{5}}(?:1|0[^2]|02-(?:[01]|2[^9])))"
_PATTERNS = {"date": [_DAY], "time": ["^.{6}[0-5]"], "date-time": [_DAY, "^.{17}[0-5]"]} | {
    f"uuid{version}": [f"^.{{14}}{version}.{{4}}[89abAB]"] for version in range(1, 9)
}  # the last are pydantic's
_LENIENT = {"lenient": True, "coerce_one_of": True}


def rewritten(schema: object, *, is_lenient: bool = False) -> Any:
    """A schema of the same texts, which llguidance enforces; `is_lenient`: what it does not know is ignored.

    Raises Unsatisfiable, Unsupported, and RecursionError if it is nested too deeply.
    """
    found = _usual(schema, is_lenient=is_lenient, closes=not _combines(schema))
    options = _OPTIONS | (_LENIENT if is_lenient else {})
    try:
        found, has_escapes = form(found, is_lenient=is_lenient)
        options |= {} if has_escapes else _NO_ESCAPES
    except Unsupported:
        if not is_lenient:
            raise
    return found | {"x-guidance": options} if isinstance(found, dict) else found


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
        if key in NAMED and isinstance(value, dict):
            found[key] = {name: usual(one) for name, one in value.items()}
        elif key != "$schema" and not (is_lenient and _is_refused(key, value)):
            found |= _plain(key, value if key in VALUES else usual(value))
            if key == "format" and isinstance(value, str) and value in _PATTERNS:
                patterns += [{"pattern": pattern} for pattern in _PATTERNS[value]]
    if patterns and isinstance(several := found.get("allOf", []), list):
        found["allOf"] = several + patterns
    types, names, required = found.get("type"), found.get("properties"), found.get("required", [])
    is_object = types == "object" or (isinstance(types, list) and "object" in types)
    if not (closes and is_object and isinstance(names, dict) and isinstance(required, list)) or schema.keys() & _OPEN:
        return found
    has_all = all(isinstance(name, str) and name in names for name in required)
    return found | {"additionalProperties": False, CLOSED: True} if has_all else found


def _plain(key: str, value: Any) -> dict[str, Any]:
    """A keyword as llguidance accepts it, or nothing if it changes nothing."""
    if key == "format" and isinstance(value, str):  # 2020-12 takes formats as notes
        known = "uuid" if value.startswith("uuid") and value in _PATTERNS else value
        return {key: known} if known in _FORMATS else {}
    return {} if value is None and key != "const" else {key: value}  # some clients write null for what is absent


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
