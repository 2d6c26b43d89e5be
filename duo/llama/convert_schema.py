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

MAX_S = 1.0  # CPU time
HUNG_S = 60.0  # after which the process is not waited for, whatever the machine is doing
MAX_GRAMMAR = 2**18  # bytes
_MAX_MEMORY = 2**28
# The converter allows line ends and other control characters in strings, as JSON does not.
_CHARACTER, _NO_CONTROL = r'char ::= [^"\\] |', r'char ::= [^"\\\x00-\x1F\x7F] |'
_LITERAL_OR_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[\d,]*\}|(?P<name>[A-Za-z0-9-]+)', re.DOTALL)


def main() -> None:
    """Convert, as the arguments say; exits with a reason if the schema cannot be converted."""
    folder, *several = sys.argv[1:]
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_S)
    sys.path.insert(0, folder)
    convert = import_module("llama_grammar").json_schema_to_gbnf
    try:
        schema = json.loads(sys.stdin.buffer.read().decode())
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


def renamed(grammar: str, prefix: str) -> str:
    """The grammar with `prefix` before the names of its rules."""
    return _LITERAL_OR_NAME.sub(lambda found: prefix + found[0] if found["name"] else found[0], grammar)


def refuse(reason: str) -> None:
    """Exit with this reason, shortened to one line."""
    sys.stdout.buffer.write(" ".join(reason[:1000].split()).encode("utf-8", "replace"))
    sys.exit(1)
