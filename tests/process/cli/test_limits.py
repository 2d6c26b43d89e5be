"""Input without an end, and threads that the system does not start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.command import ROOT, Argument, assert_refused, command, duo, environment

pytestmark = pytest.mark.timeout(300)


def shell(line: str, *arguments: Argument) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash, in which "$@" is the command."""
    bash: list[Argument] = ["bash", "-c", line, "bash", *command(*arguments)]
    return subprocess.run(bash, env=environment(), capture_output=True, timeout=120, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("option", "most"), [("-f", 64), ("--grammar-file", 1), ("-jf", 1)], ids=["prompt", "grammar", "schema"]
)
def test_a_file_without_an_end(option: str, most: int) -> None:
    prompt = () if option == "-f" else ("-p", "x")
    run = duo("-m", "missing.gguf", *prompt, option, "/dev/zero")
    assert_refused(run, f"/dev/zero: it has more than {most} MiB, the most that is read")


@pytest.mark.parametrize("arguments", [("-m", "missing.gguf", "-f", "-"), ("chat",)])
def test_standard_input_without_an_end(arguments: tuple[str, ...]) -> None:
    run = shell('cat /dev/zero | "$@"', *arguments)
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr == b"duo: error: standard input: it has more than 64 MiB, the most that is read\n"


def test_a_prompt_from_a_process_substitution_and_from_dev_stdin(tiny: Path) -> None:
    options = ("-m", tiny, "-n", "4", "-t", "1", "--display-prompt")
    for line in ('"$@" -f <(echo the cat)', 'echo the cat | "$@" -f /dev/stdin', 'echo the cat | "$@" -f -'):
        run = shell(line, *options)
        assert run.stdout.startswith(b"the cat"), run.stderr


def test_more_threads_than_the_system_starts(tiny: Path) -> None:
    """Each needs address space for its stack; limits of processes do not hold for root."""
    stack = "import threading; threading.stack_size(8 << 20)"
    limit = f"{stack}; import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))"
    run = duo("-m", tiny, "-p", "the cat", "-n", "4", "-t", "512", before=limit)
    assert_refused(run, "-t: 512 threads are needed, and the system lets this process start ", status=2)
