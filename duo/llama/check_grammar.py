"""A script: checks the Lark grammar on standard input (lark.py), before a model is loaded or a request waits.

Exit status 1: standard output has the reason. A signal: a limit was reached. It is started for every new schema, so it
imports little.
"""

import re
import resource
import signal
import sys
from contextlib import suppress

MARK = "%llguidance"  # what a Lark grammar begins with, for llama.cpp, too
MAX_S = 1.0  # CPU time
HUNG_S = 60.0  # after which a process is not waited for, whatever the machine is doing
_MAX_MEMORY = 2**28
_QUOTED = re.compile(r"^ *\d+ \| ", re.MULTILINE)
_OPTION = re.compile(r"\. Enable 'coerce_one_of' option.*")
_WHERE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")


def main() -> None:
    """Check it; exits with a reason if the grammar cannot be used."""
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_S)
    from llguidance import LLMatcher, LLTokenizer  # noqa: PLC0415 - within the limits

    # As it is applied later: validate_grammar() leaves out what may take long.
    matcher = LLMatcher(LLTokenizer("byte"), sys.stdin.buffer.read().decode(), log_level=0)
    if matcher.is_error():
        sys.stdout.buffer.write(reason(matcher.get_error()).encode("utf-8", "replace"))
        sys.exit(1)


def reason(error: str) -> str:
    """Why llguidance refuses a grammar, in one line: the first and the last before it quotes the grammar."""
    first, *more = _QUOTED.split(error.strip())[0].strip().splitlines() or ["llguidance gives no reason"]
    found = " ".join([_WHERE.sub("", first), *(line.strip().removeprefix("error: ") for line in more[-1:])])
    return _OPTION.sub(": use anyOf", found)[:300]
