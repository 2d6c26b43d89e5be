"""A script: converts the JSON schema on standard input, or an array of schemas, to GBNF on standard output.

llama-cpp-python's converter repeats what a schema repeats before anything can be measured, so a few KB can take a
minute and gigabytes. Here, time, memory and output are limited. Only the standard library is imported: it is started
for every new schema. Of an array, the rules of the first schema begin with `s0-`, those of the second with `s1-`.

Arguments: the folder of llama_cpp, whose import takes too long, and `several` for an array. Exit status 1: standard
output has the reason. A signal: the CPU time was used up.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

MAX_S = 1.0  # CPU time
HUNG_S = 60.0  # after which the process is not waited for, whatever the machine is doing
MAX_GRAMMAR = 2**18  # bytes
_MAX_MEMORY = 2**28
# The converter allows line ends and other control characters in strings, as JSON does not.
_CHARACTER, _NO_CONTROL = r'char ::= [^"\\] |', r'char ::= [^"\\\x00-\x1F\x7F] |'
_ANNOTATIONS = {
    "title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "contentEncoding", "contentMediaType",
}  # fmt: skip
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}  # objects of schemas
_ANY = {"anyOf": [{"type": name} for name in ("object", "array", "string", "number", "boolean", "null")]}
# The converter repeats a rule as often as a limit says: larger ones are left out.
_LIMITS = dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), 1000)
_LIMITS |= dict.fromkeys(("minimum", "maximum"), 2**31)
_VALUES = {"enum", "const", "required"}  # not schemas
_SWITCHES = {"additionalProperties", "unevaluatedProperties", "additionalItems", "uniqueItems"}
_LITERAL_OR_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[\d,]*\}|(?P<name>[A-Za-z0-9-]+)', re.DOTALL)


def main() -> None:
    """Convert, as the arguments say; exits with a reason if the schema cannot be converted."""
    folder, *several = sys.argv[1:]
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_S)
    sys.path.insert(0, folder)
    module: Any = import_module("llama_grammar")
    # Its literals escape quotes, but not what JSON has escaped.
    dumps = lambda value: json.dumps(value, ensure_ascii=False).replace("\\", "\\\\")  # noqa: E731
    module.json, convert = SimpleNamespace(dumps=dumps, loads=json.loads), module.json_schema_to_gbnf
    try:
        schema = normalised(json.loads(sys.stdin.buffer.read().decode()))
        if several:
            text = "\n".join(renamed(convert(json.dumps(one)), f"s{i}-") for i, one in enumerate(schema))
        else:
            text = convert(json.dumps(schema))
        grammar = text.replace(_CHARACTER, _NO_CONTROL).encode()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        refuse(f"is not valid JSON: {error}")
    except MemoryError:
        refuse("needs too much memory as a grammar")
    except Exception as error:  # the converter checks nothing, so it may raise anything
        reason = str(error).removesuffix(" (use --allow-fetch for force)")
        refuse(f"is an invalid or unsupported JSON schema: {reason or type(error).__name__}")
    if len(grammar) > MAX_GRAMMAR:
        refuse(f"is a grammar of more than {MAX_GRAMMAR} bytes")
    sys.stdout.buffer.write(grammar)


def normalised(schema: Any) -> Any:
    """A schema, or an array of them, in the words that the converter knows.

    It refuses a schema that has only a description, does not know true, and forgets all else beside several types.
    """
    if isinstance(schema, list):
        return [normalised(one) for one in schema]
    if not isinstance(schema, dict):
        return {} if schema is True else schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            found[key] = {name: _within(one) for name, one in value.items()}
        elif key not in _ANNOTATIONS:
            found[key] = value if key in _VALUES or (value is True and key in _SWITCHES) else _within(value)
    _simplify(found)
    return found


def _simplify(found: dict[str, Any]) -> None:
    """Leave out large limits, and let it have one type, several alternatives or values."""
    for key in _LIMITS.keys() & found.keys():
        if isinstance(found[key], int) and abs(found[key]) > _LIMITS[key]:
            del found[key]
    if isinstance(found.get("allOf"), list) and len(found["allOf"]) == 1 and isinstance(found["allOf"][0], dict):
        found |= found.pop("allOf")[0]
    types = found.get("type")
    types = types if isinstance(types, list) else [types] if isinstance(types, str) else []
    if types and isinstance(found.get("enum"), list):
        del found["type"]
        found["enum"] = [value for value in found["enum"] if any(_is_of(value, one) for one in types)]
        if not found["enum"]:
            raise ValueError("an enum without a value")
    elif len(types) == 1:
        found["type"] = types[0]
    elif len(types) > 1 and not found.keys() & {"anyOf", "oneOf", "allOf", "$ref"}:
        more = {key: found.pop(key) for key in [*found] if key not in ("$defs", "definitions")}
        found["anyOf"] = [more | {"type": one} for one in types]


def _within(schema: Any) -> Any:
    """normalised(), within another one: there, an empty schema is any value, and not an object."""
    if isinstance(schema, list):
        return [_within(one) for one in schema]
    found = normalised(schema)
    return _ANY if found == {} else found


def _is_of(value: Any, name: str) -> bool:
    """Whether a value is of a type of JSON Schema."""
    if isinstance(value, bool):
        return name == "boolean"
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "object": dict,
        "array": list,
        "null": type(None),
    }
    return isinstance(value, kinds.get(name, ()))


def renamed(grammar: str, prefix: str) -> str:
    """The grammar with `prefix` before the names of its rules."""
    return _LITERAL_OR_NAME.sub(lambda found: prefix + found[0] if found["name"] else found[0], grammar)


def refuse(reason: str) -> None:
    """Exit with this reason, shortened to one line."""
    sys.stdout.buffer.write(" ".join(reason[:1000].split()).encode("utf-8", "replace"))
    sys.exit(1)
