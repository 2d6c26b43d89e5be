"""Small bugs that the tests must find: each is put into a copy of the product, alone, and the tests for it are run.

    python -m tests.mutations [NAME...] [-j N]

It prints which test has failed first for each mutation whose name contains a NAME (default: all), with N at a time, and
exits with status 1 if one was not found. mutations.txt has them: a name, which says what the bug does, so that it can
be made anew after the code has changed; the file and the tests that should find it; a text that occurs once in the
file, after -, and what it becomes, after +. None of the tests needs build/; some need the demo pair.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LIMIT_S = 600.0  # after which the tests hang: found
_FAULTS = (0, 3, 4, 5)  # pytest's exit statuses: nothing failed, faults of its own, or there was no test
_FIRST = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)  # in pytest's summary


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug: `old`, which occurs once in `file`, becomes `new`. `tests`: files or folders that should find it."""

    name: str
    file: str
    tests: list[str]
    old: str
    new: str


def read_mutations() -> list[Mutation]:
    """Those of mutations.txt."""
    found = []
    for block in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").rstrip().split("\n\n"):
        name, places, *changes = block.splitlines()
        file, *tests = places.split()
        old, new = ("\n".join(line[1:] for line in changes if line[0] == sign) for sign in "-+")
        found.append(Mutation(name, file, tests, old, new))
    return found


def main() -> int:
    """Returns the exit status: 0, or 1 if a mutation was not found, or 2 for names that none has."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description="Put bugs into the product that the tests must find."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of mutations (default: all)")
    parser.add_argument("-j", type=int, default=1, metavar="N", dest="jobs", help="how many at a time")
    options = parser.parse_args()
    chosen = [one for one in read_mutations() if any(name in one.name for name in options.names or [""])]
    if not chosen:
        parser.error(f"no mutation has {options.names[0]!r} in its name")
    width, n_missed = max(len(mutation.name) for mutation in chosen), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for mutation, (is_found, by, seconds) in zip(chosen, pool.map(run, chosen), strict=True):
                n_missed += not is_found
                verdict = "found" if is_found else "NOT FOUND"
                sys.stdout.write(f"{mutation.name:<{width}}  {verdict:<9}  {seconds:5.0f} s  {by}\n")
                sys.stdout.flush()
        except BaseException:  # such as Ctrl-C, which the tests do not get
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                _kill(process)
            raise
    sys.stdout.write(f"{len(chosen) - n_missed} of {len(chosen)} found\n")
    return int(n_missed > 0)


def run(mutation: Mutation) -> tuple[bool, str, float]:
    """Run its tests in a copy of the working tree: whether one failed, which first, and after how many seconds."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duo-mutation-", ignore_cleanup_errors=True) as copy:
        left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "shared")
        path = Path(shutil.copytree(ROOT, copy, ignore=left_out, dirs_exist_ok=True), mutation.file)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(mutation.old) != 1:
            return False, f"{mutation.file} has changed: make this mutation anew", 0.0
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        status, output = _test(copy, mutation.tests)
    first, last = _FIRST.search(output), next(reversed(output.splitlines()), "")
    found_by = first[1] if first else "a hang" if status is None else last
    return status not in _FAULTS, found_by, time.monotonic() - start


_running: set[subprocess.Popen[bytes]] = set()


def _test(copy: str, tests: list[str]) -> tuple[int | None, str]:
    """Pytest's exit status, None if it has not ended in time, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    env = os.environ | {"PYTHONPATH": copy}  # before the installed package
    # Not a pipe, which a process that a test has left behind would keep open.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=copy, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        _running.add(process)
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_LIMIT_S)
        finally:
            _kill(process)
            process.wait()
            _running.discard(process)
        log.seek(0)
        return status, log.read().decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
