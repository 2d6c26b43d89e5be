"""A script: writes the Lark grammar (lark.py) of JSON schemas, before a model is loaded or a request waits.

Standard input has the arguments of written() in JSON, standard output the grammar, or, with exit status 1, why there is
none. A signal: a limit was reached. It is started for every new schema, so it imports little.
"""

import json
import re
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from duo.llama.schema_documents import Unsupported
from duo.llama.schema_forms import Unsatisfiable, rewritten

MARK = "%llguidance"  # what a Lark grammar begins with, for llama.cpp, too
MAX_S = 1.0  # CPU time
HUNG_S = 60.0  # after which a process is not waited for, whatever the machine is doing
_MAX_MEMORY = 2**28
_QUOTED = re.compile(r"^ *\d+ \| ", re.MULTILINE)
_WHERE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")


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
