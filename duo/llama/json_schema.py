"""A script: writes the Lark grammar (llguidance) of JSON schemas, before a model is loaded or a request waits.

Standard input has the arguments of written() in JSON, standard output the grammar, or, with exit status 1, why there is
none. A signal: a limit was reached. It is started for every new schema, so it imports little.

A schema is read (schema_documents.py), made a union of alternatives (schema_cases.py) and rewritten here into what
llguidance enforces: nothing is left to combine, and what llguidance 1.9 enforces wrongly is written otherwise, or
refused.
"""

import json
import math
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

from duo.llama.schema_cases import MOST, Alternative, Schema, of_property
from duo.llama.schema_cases import others as others_of
from duo.llama.schema_documents import Documents, Unsupported

MARK = "%llguidance"  # what a Lark grammar begins with, for llama.cpp, too
MAX_S = 1.0  # CPU time
HUNG_S = 60.0  # after which a process is not waited for, whatever the machine is doing
_MAX_MEMORY = 2**28
_QUOTED = re.compile(r"^ *\d+ \| ", re.MULTILINE)
_WHERE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
# As in llama.cpp's grammars of schemas: without a limit, a model may write spaces to the end.
_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,20})?", "json_allow_general_unicode_escapes": True}
_NO_ESCAPES = {"json_allow_general_unicode_escapes": False, "json_allowed_escapes": 'nrbtf"\\'}
_LENIENT = {"lenient": True, "coerce_one_of": True}
_DEFINITIONS = 4000
_CLASSES = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])", re.DOTALL)
_ATOMS = re.compile(r"\\.|.", re.DOTALL)
_BOUNDS = {"low": ("inimum", 1), "high": ("aximum", -1)}  # of an Alternative: its name here, and its sign
_GAP = Fraction(1, 10**9)  # beside a whole exclusive bound that is less than 1 from the other


def main() -> None:
    """Write it; exits with a reason if there is none."""
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_S)
    text = ""
    try:
        text = written(**json.load(sys.stdin))
        said = refusal(text)
    except (Unsatisfiable, Unsupported) as error:
        said = str(error)
    except RecursionError:
        said = "it is nested too deeply"
    sys.stdout.buffer.write((said or text).encode("utf-8", "replace"))
    sys.exit(bool(said))


def written(schemas: Sequence[object], rules: Sequence[str], n_lenient: int) -> str:
    """The grammar; see schemas_grammar(). Raises Unsatisfiable, Unsupported, RecursionError."""
    values = []
    for i, schema in enumerate(schemas):
        value = rewritten({"type": "object"} if schema == {} else schema, is_lenient=i < n_lenient)
        values.append(f"s{i}: %json {json.dumps(value)}")
    return "\n".join([f"{MARK} {{}}", *rules, *values])


def refusal(text: str) -> str:
    """Why llguidance refuses a grammar, or nothing."""
    from llguidance import LLMatcher, LLTokenizer  # noqa: PLC0415 - within the limits

    # As it is applied later: validate_grammar() leaves out what may take long.
    matcher = LLMatcher(LLTokenizer("byte"), text, log_level=0)
    if matcher.is_error():
        return reason(matcher.get_error())
    has_text = any(matcher.compute_bitmask()) and "NoExtensionBias" not in matcher.get_error()
    return "" if has_text else "no text can satisfy it"


def reason(error: str) -> str:
    """Why llguidance refuses a grammar, in one line: the first and the last before it quotes the grammar."""
    first, *more = _QUOTED.split(error.strip())[0].strip().splitlines() or ["llguidance gives no reason"]
    more = [line.strip().removeprefix("error: ") for line in more if not line.startswith("  while processing")]
    found = " ".join([_WHERE.sub("", first), *more[-1:]]).replace("Unsatisfiable schema", "no text can satisfy it")
    found = found.replace("regex parse error", "pattern: regex parse error")
    found = found.replace("patternProperty regexes", "patternProperties or propertyNames: patterns")
    return found.replace("fuel exhausted", "simplify patterns, multipleOf or limits: fuel exhausted")[:300]


class Unsatisfiable(Exception):
    """No text can match the schema."""


def rewritten(schema: object, *, is_lenient: bool = False) -> Any:
    """A schema of the same texts, which llguidance enforces; `is_lenient`: what it does not know is ignored.

    Raises Unsatisfiable, Unsupported, and RecursionError if it is nested too deeply.
    """
    documents = Documents(schema, is_lenient=is_lenient)
    found, options = documents.root, _OPTIONS | (_LENIENT if is_lenient else {})
    try:
        forms = _Forms(Schema(documents))
        root = forms.of(found)
        forms.compute()
        if not forms.has_text(root):
            raise Unsatisfiable("no text can satisfy it")
        found = root if root is True else root | {"$defs": forms.definitions}
        options |= {} if forms.has_escapes else _NO_ESCAPES
    except Unsupported:
        if not is_lenient:
            raise
    return found | {"x-guidance": options} if isinstance(found, dict) else found


class _Forms:
    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.definitions: dict[str, Any] = {}
        self._referring: dict[str, dict[str, Any]] = {}  # by schema
        self._waiting: list[tuple[str, Any]] = []
        self._ended: set[str] = set()  # definitions with texts that end
        self.has_escapes = True

    def of(self, schema: Any) -> Any:
        """The form of a part: True, False, or an object that may change until compute() returns."""
        cases = {kind: some for kind, some in self.schema.cases(schema).items() if some}
        if len(cases) == 6 and all({} in some for some in cases.values()):
            return True
        if not cases.keys() & {"array", "object"}:
            return self._scalars(cases)
        key = json.dumps(schema)
        if key not in self._referring:
            name = f"s{len(self._referring)}"
            if len(self._referring) > _DEFINITIONS:
                raise Unsupported("$ref or allOf: together, they have too many cases")
            self._referring[key] = {"$ref": f"#/$defs/{name}"}
            self._waiting.append((name, cases))
        return self._referring[key]

    def compute(self) -> None:
        """Compute the definitions, and mend references to those that no text can satisfy."""
        while self._waiting:
            name, cases = self._waiting.pop()
            some = [self._array(one) for one in cases.get("array", ())]
            some += [self._object(one) for one in cases.get("object", ())]
            scalars = self._scalars({kind: some for kind, some in cases.items() if kind not in ("array", "object")})
            some += [scalars] if scalars is not False else []
            self.definitions[name] = some[0] if len(some) == 1 else {"anyOf": some or [False]}
        while more := {name for name, one in self.definitions.items() if self.has_text(one)} - self._ended:
            self._ended |= more
        for reference in self._referring.values():
            if reference["$ref"][8:] not in self._ended:
                reference.clear()
                reference["anyOf"] = [False]

    def has_text(self, one: Any) -> bool:
        """Whether a text that ends can match a form."""
        if isinstance(one, bool):
            return one
        if "$ref" in one:
            return one["$ref"][8:] in self._ended
        if "anyOf" in one:
            return any(map(self.has_text, one["anyOf"]))
        if one.get("type") == "object":
            return all(self.has_text(one["properties"][name]) for name in one.get("required", ()))
        items = [*one.get("prefixItems", ()), one.get("items", True)]
        return all(self.has_text(items[min(i, len(items) - 1)]) for i in range(min(one.get("minItems", 0), len(items))))

    def _scalars(self, cases: dict[str, list[Alternative]]) -> Any:
        several = [_SCALARS[kind](one) for kind, some in cases.items() for one in some]
        found = [one for one in several if one]
        return found[0] if len(found) == 1 else {"anyOf": found} if found else False

    def _array(self, one: Alternative) -> Any:
        n, most = len(one.get("prefixItems", ())), one.get("maxItems", math.inf)
        if one.get("uniqueItems") and most > 1 and (n > 1 or one.get("items", True) is not False):
            raise Unsupported("uniqueItems")
        found = {"type": "array"} | {key: one[key] for key in ("minItems", "maxItems") if key in one}
        if n:
            found["prefixItems"] = [self.of(part) for part in one["prefixItems"]]
        return found | ({"items": self.of(one["items"])} if "items" in one else {})

    def _object(self, one: Alternative) -> Any:
        required, least = one.get("required", []), one.get("minProperties", 0)
        names = [*dict.fromkeys([*one.get("properties", ()), *required])]
        properties = {name: of_property(one, name) for name in names}
        patterns, others = one.get("patternProperties", {}), others_of(one)
        forms = {name: self.of(part) for name, part in properties.items()}
        others = self.of(others)
        if properties and not patterns and others is not False:
            # An additional property may be written with escapes, for llguidance also one that is not additional.
            patterns, others = {without(forms): others}, False
        elif patterns:
            patterns = {_written(pattern): self.of(part) for pattern, part in patterns.items()}
            self.has_escapes = self.has_escapes and others is False
        found = {"type": "object", "properties": forms, "additionalProperties": others}
        found |= {"patternProperties": patterns} if patterns else {}
        is_open = others is not False or any(part is not False for part in patterns.values())
        if is_open and least - len(required) > 1:
            raise Unsupported("minProperties or maxProperties: a property could be written twice")
        counts = {key: one[key] for key in ("minProperties", "maxProperties") if key in one}
        return found | {"required": required} | (counts if least > len(required) or "maxProperties" in one else {})


def _boolean(one: Alternative) -> Any:
    values = one.get("enum", [False, True])
    return {"enum": values} if values else None


def _string(one: Alternative) -> Any:
    if "enum" in one and not one.keys() & {"pattern", "format"}:
        return {"enum": one["enum"]}
    several = [{"pattern": _written(pattern)} for pattern in one.get("pattern", ())]
    several += [{"format": name} for name in one.get("format", ())]
    found: dict[str, Any] = {key: one[key] for key in ("minLength", "maxLength", "enum") if key in one}
    found |= several.pop(0) if several else {}
    return {"type": "string"} | found | ({"allOf": several} if several else {})


def _number(one: Alternative) -> Any:
    if "enum" in one:
        return {"enum": [_exact("enum", value) for value in one["enum"]]}
    bounds: dict[str, tuple[Fraction, bool]] = {}
    for key in [key for key in _BOUNDS if key in one]:
        value, is_exclusive = one[key]
        if "integer" in one:
            value, is_exclusive = Fraction(math.floor(value) + 1 if is_exclusive else math.ceil(value)), False
        if value > MOST:
            name = _BOUNDS[key][0]
            raise Unsupported(f"m{name}, exclusiveM{name}: beyond {MOST}")
        bounds[key] = max((value, is_exclusive), (Fraction(-MOST), False))
    width = -sum(value for value, _ in bounds.values()) if len(bounds) == 2 else 1
    found: dict[str, Any] = {"type": "integer" if "integer" in one else "number"}
    found |= {"multipleOf": _exact("multipleOf", one["multipleOf"])} if "multipleOf" in one else {}
    for key, (value, is_exclusive) in bounds.items():
        name, sign = _BOUNDS[key]
        is_near = is_exclusive and width < 1 and value.denominator == 1
        if is_near and (width <= 2 * _GAP or abs(value) > 10**5):
            raise Unsupported(f"exclusiveM{name}: {value * sign} is near the other bound")
        bound = _exact(f"m{name}", (value + _GAP if is_near else value) * sign)
        found[f"exclusiveM{name}" if is_exclusive and not is_near else f"m{name}"] = bound
    return found if width >= 0 else None


def _exact(key: str, value: Fraction) -> int | float:
    number = int(value) if value.denominator == 1 else float(value)
    if abs(value) > MOST or Fraction(str(number)) != value:
        raise Unsupported(f"{key}: llguidance rounds {value}")
    return number


def _written(pattern: str) -> str:
    """A pattern for llguidance, to which a class of all control characters has quotes and backslashes, too."""
    parts = [_literal(part) if part.startswith("[") else part for part in _CLASSES.split(pattern)]
    for i, part in enumerate(parts):
        if part.startswith("[^") and not _has(part, '"\\'):
            parts[i] = rf"[^\x00{part[2:]}"
        elif part.startswith("[") and _has(part, "\0\x1f") and not _has(part, '"\\'):
            raise Unsupported(f"pattern: {part}")
    return "".join(parts)


def _literal(characters: str) -> str:
    """A class whose characters are themselves: to llguidance, as in Rust, [, &&, -- and ~~ are operators there."""
    begin = "[^" if characters.startswith("[^") else "["
    atoms = _ATOMS.findall(characters[len(begin) : -1])
    found, i = [f"\\{atom}" if atom in "[]&~-" else atom for atom in atoms], 0
    while i + 2 < len(atoms):
        if is_range := atoms[i + 1] == "-":
            found[i + 1] = "-"
        i += 3 if is_range else 1
    return f"{begin}{''.join(found)}]"


def _has(characters: str, text: str) -> bool:
    """Whether a class has each character, as far as Python knows what it means."""
    with suppress(re.error):
        return re.fullmatch(f"{characters}*", text, re.ASCII) is not None
    return False


def without(words: Iterable[str]) -> str:
    """A pattern of every text but these."""
    return f"^{_without([*words])}$"


def _without(words: list[str]) -> str:
    if not words:
        return r"[\s\S]*"
    rest: dict[str, list[str]] = {}
    for word in words:
        if word:
            rest.setdefault(f"\\x{{{ord(word[0]):x}}}", []).append(word[1:])
    ways = [] if "" in words else [""]
    ways += [first + _without(more) for first, more in rest.items()]
    nul = r"\x00" if {"\\x{22}", "\\x{5c}"} & rest.keys() else ""  # see _written()
    ways.append(f"[^{nul}{''.join(rest)}]" + r"[\s\S]*" if rest else r"[\s\S]+")
    return f"(?:{'|'.join(ways)})"


_SCALARS: dict[str, Callable[[Alternative], Any]] = {
    "string": _string, "number": _number, "boolean": _boolean, "null": lambda _: {"type": "null"}
}  # fmt: skip
