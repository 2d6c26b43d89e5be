"""Damaged GGUF files, as target and as draft: the command generates, or says in one line what is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.cases import FULL, n_cases
from tests.fuzz.forks import Forks, fault
from tests.fuzz.gguf_mutations import damaged
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_head import Head

N = n_cases(2000)
BATCH = 50
SHORT = ("-p", "the cat sat ä!\n", "-n", "6", "-c", "64", "-t", "1")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("good") / "good.gguf")


@pytest.fixture(scope="module")
def bases(good: Path) -> list[Head]:
    others = (
        tiny_gemma(good.with_name("gemma.gguf"), window=16),
        tiny_hybrid(good.with_name("hybrid.gguf")),
        tiny_qwen35(good.with_name("qwen35.gguf")),
        tiny_mamba(good.with_name("mamba.gguf")),
    )
    return [Head.read(path) for path in (good, good, *others)]


@pytest.fixture(scope="module")
def duo(good: Path) -> Iterator[Forks]:
    with Forks(good.parent) as running:
        yield running
        running.stdin.close()


def test_the_bases_are_sound(good: Path, bases: list[Head], duo: Forks, tmp_path: Path) -> None:
    for base in bases:
        path = str(base.write(tmp_path / "base.gguf"))
        for models in (["-m", path], ["-m", str(good), "-md", path, "-td", "1"]):
            status, stderr = duo(*SHORT, *models)
            assert status == 0, stderr


@pytest.mark.parametrize("batch", range(-(-N // BATCH)))
def test_a_damaged_file_ends_no_process(good: Path, bases: list[Head], duo: Forks, tmp_path: Path, batch: int) -> None:
    path = tmp_path / "bad.gguf"
    for number in range(batch * BATCH, min(N, (batch + 1) * BATCH)):
        seed = random.getrandbits(32) if FULL else number
        chosen = Random(seed)
        content, what = damaged(chosen.choice(bases), chosen)
        models = ["-m", str(good), "-md", str(path), "-td", "1"] if chosen.random() < 0.25 else ["-m", str(path)]
        path.write_bytes(content)
        status, stderr = duo(*SHORT, *models)
        assert not fault(status, stderr), f"seed {seed}, {what}: {fault(status, stderr)}\n{stderr}"
