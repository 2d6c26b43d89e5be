"""Damaged GGUF files, as target and as draft: the command generates, or says in one line what is wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.command import environment
from tests.fuzz.cases import FULL, n_cases
from tests.fuzz.gguf_mutations import damaged
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_head import Head

Duo = Callable[[list[str]], tuple[int, str]]  # arguments to wait status and standard error

N = n_cases(2000)
BATCH = 50


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("good") / "good.gguf")


@pytest.fixture(scope="module")
def bases(good: Path) -> list[Head]:
    folder = good.parent
    others = (
        tiny_gemma(folder / "gemma.gguf", window=16),
        tiny_hybrid(folder / "hybrid.gguf"),
        tiny_qwen35(folder / "qwen35.gguf"),
        tiny_mamba(folder / "mamba.gguf"),
    )
    return [Head.read(path) for path in (good, good, *others)]


@pytest.fixture(scope="module")
def duo() -> Iterator[Duo]:
    """Runs the command in a fork of a process that has imported it."""
    command = [sys.executable, "-m", "tests.fuzz.gguf_child"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, stdout = child.stdin, child.stdout

        def run(arguments: list[str]) -> tuple[int, str]:
            stdin.write(json.dumps(["-p", "the cat sat ä!\n", "-n", "6", "-c", "64", "-t", "1", *arguments]) + "\n")
            stdin.flush()
            status, stderr = json.loads(stdout.readline())
            return status, stderr

        yield run
        stdin.close()


def fault(status: int, stderr: str) -> str:
    """What is wrong with the end of a run; empty if nothing is."""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    if code not in (0, 1, 2):
        return f"status {code}"
    if code and (stderr.count("\n") != 1 or not stderr.startswith("duo: error: ")):
        return f"status {code} without one line"
    return ""


def test_the_bases_are_sound(good: Path, bases: list[Head], duo: Duo, tmp_path: Path) -> None:
    for base in bases:
        path = str(base.write(tmp_path / "base.gguf"))
        for models in (["-m", path], ["-m", str(good), "-md", path, "-td", "1"]):
            status, stderr = duo(models)
            assert status == 0, stderr


@pytest.mark.parametrize("batch", range(-(-N // BATCH)))
def test_a_damaged_file_ends_no_process(good: Path, bases: list[Head], duo: Duo, tmp_path: Path, batch: int) -> None:
    path = tmp_path / "bad.gguf"
    for number in range(batch * BATCH, min(N, (batch + 1) * BATCH)):
        seed = random.getrandbits(32) if FULL else number
        chosen = Random(seed)
        content, what = damaged(chosen.choice(bases), chosen)
        models = ["-m", str(good), "-md", str(path), "-td", "1"] if chosen.random() < 0.25 else ["-m", str(path)]
        path.write_bytes(content)
        status, stderr = duo(models)
        assert not fault(status, stderr), f"seed {seed}, {what}: {fault(status, stderr)}\n{stderr}"
