"""Command lines: every option that takes a value, at values out of any range, and at random ones.

The options are found from the command itself. Models are tiny, or missing where a command would not end by itself.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.command import environment
from tests.fuzz.cases import FULL, n_cases
from tests.gguf_files import tiny_llama
from tests.golden.configuration import whole_command

Duo = Callable[[list[str]], tuple[int, str]]  # arguments to wait status and standard error

N = n_cases(2000)
BATCH = 50
SEED = random.getrandbits(32) if FULL else 1
NUMBERS = (
    "0", "-1", "1", "512", "513", "65536", "1000000000", "2147483647", "2147483648", "4294967296",
    "9223372036854775808", "-9223372036854775809", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "1e400",
)  # fmt: skip
TEXTS = (
    "", " ", "٣", "0x10", "1_000", "1.5", "9" * 5000, "1,2,3", "0-1", "5+1e308", "1e308,1e308", "nan,1", "auto", "all",
    "none", "a:99999999", "\udcff", "[" * 2000, "🙂" * 9,
)  # fmt: skip
CLOSING = ("doctor", "list")  # take no values
AGAIN = ("demo",)  # has some of the options of a run
VERDICTS = ("check", "doctor")  # may end with status 1 and no error


def options() -> dict[str, list[Any]]:
    """The options that take a value, by command; the first has no name."""
    top = whole_command()
    commands = {"": top, **{name: command for name, command in top.commands.items() if name not in CLOSING + AGAIN}}
    return {
        name: [found for found in command.params if found.param_type_name == "option" and not found.is_flag]
        for name, command in commands.items()
    }


OPTIONS = options()


def numeric(option: Any) -> bool:
    """Whether an option takes numbers, according to its type or its name in the help."""
    named = re.search(r"\b(N|MS|HI|ID|LIST)\b", option.metavar or "")
    return option.type_descriptor.annotation in (int, float) or named is not None


def systematic() -> list[tuple[str, list[str]]]:
    """Every numeric option at every number, in a random order."""
    found = [
        (command, [name, value])
        for command, known in OPTIONS.items()
        for option in known
        if numeric(option)
        for name in option.opts[:1]
        for value in NUMBERS
    ]
    return Random(SEED).sample(found, len(found))


def text(draw: Random) -> str:
    """A random argument, as Python decodes those of a process."""
    data = bytes(draw.randrange(1, 256) for _ in range(draw.randrange(12)))
    return data.decode("utf-8", "surrogateescape")


def combination(draw: Random) -> tuple[str, list[str]]:
    """Up to five options of one command with random values."""
    command = draw.choice(list(OPTIONS))
    arguments: list[str] = []
    for option in draw.choices(OPTIONS[command], k=draw.randint(1, 5)):
        value = draw.choice((draw.choice(NUMBERS), draw.choice(NUMBERS), draw.choice(TEXTS), text(draw)))
        arguments += [draw.choice(option.opts), value]
    return command, arguments


SYSTEMATIC = systematic()


def case(i: int) -> tuple[str, list[str]]:
    """Three in four are systematic, as long as there are any."""
    order, is_combined = divmod(i, 4)
    if is_combined < 3 and 3 * order + is_combined < len(SYSTEMATIC):
        return SYSTEMATIC[3 * order + is_combined]
    return combination(Random(f"{SEED} {i}"))


@pytest.fixture(scope="module")
def duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duo]:
    """Runs the command in a fork of a process that has imported it, in an empty directory."""
    code = (
        "import duo.cli.commands.check, duo.cli.commands.bench, duo.cli.commands.lead, duo.cli.commands.back\n"
        "import duo.cli.commands.plan, duo.cli.commands.chat, duo.cli.commands.rpc_server\n"
        "from tests.fuzz.gguf_child import main\nmain()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("empty"),
        env=environment({"LLAMA_ARG_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}),
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, stdout = child.stdin, child.stdout

        def run(arguments: list[str]) -> tuple[int, str]:
            stdin.write(json.dumps(arguments) + "\n")
            stdin.flush()
            status, stderr = json.loads(stdout.readline())
            return status, stderr

        yield run
        stdin.close()


@pytest.fixture(scope="module")
def beginnings(duo: Duo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """A command line of each command that ends soon; what is added may override a part of it."""
    folder = tmp_path_factory.mktemp("models")
    target, draft = tiny_llama(folder / "target.gguf"), tiny_llama(folder / "draft.gguf", seed=1)
    pair, missing = ["-m", str(target), "-md", str(draft), "-t", "1", "-td", "1"], ["-m", str(folder / "missing.gguf")]
    found = {
        "": [*pair, "-p", "the cat", "-n", "4"],
        "check": ["check", *pair, "-p", "the cat", "-n", "4"],
        "tune": ["tune", *missing, "-md", str(draft)],
        "bench": ["bench", *missing, "-md", str(draft), "--peers", "none"],
        "lead": ["lead", *missing, "--port", "0"],
        "back": ["back", *missing],
        "rpc-server": ["rpc-server", "-d", "none"],
        "chat": ["chat"],  # standard input is empty
        "plan": ["plan", "--target-ms", "100", "--draft-ms", "10", "--accept", "0.7"],
    }
    status, stderr = duo(found[""])
    assert status == 0, stderr
    assert found.keys() == OPTIONS.keys()
    return found


def fault(command: str, status: int, stderr: str) -> str:
    """What is wrong with the end of a run; empty if nothing is."""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    code, lines = os.WEXITSTATUS(status), stderr.splitlines()
    errors = [line for line in lines if line.startswith("duo: error: ")]
    if code not in (0, 1, 2):
        return f"status {code}"
    if code and len(errors) != 1 and not (code == 1 and command in VERDICTS):
        return f"status {code} without one line"
    if code and any(not line.startswith("duo: ") for line in lines):
        return "lines of somebody else"
    if "Traceback" in stderr or "Warning:" in stderr or "libgomp" in stderr:
        return "a traceback or warning of somebody else"
    return ""


def test_the_beginnings_are_sound(duo: Duo, beginnings: dict[str, list[str]]) -> None:
    for command, beginning in beginnings.items():
        status, stderr = duo(beginning)
        assert not fault(command, status, stderr), stderr
        assert (status == 0) == (command in ("", "check", "plan", "trace")), f"{command}: {stderr}"
    assert sum(map(len, OPTIONS.values())) > 200
    assert len(SYSTEMATIC) > 1000


@pytest.mark.parametrize("batch", range(-(-N // BATCH)))
def test_a_command_line_ends_in_order(duo: Duo, beginnings: dict[str, list[str]], batch: int) -> None:
    faults = []
    for i in range(batch * BATCH, min(N, (batch + 1) * BATCH)):
        command, arguments = case(i)
        status, stderr = duo([*beginnings[command], *arguments])
        if wrong := fault(command, status, stderr):
            faults.append(f"{command} {arguments!r} (seed {SEED}, case {i}): {wrong}\n{stderr[-1500:]}")
    assert not faults, "\n".join(faults)
