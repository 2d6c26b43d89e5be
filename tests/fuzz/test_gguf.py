"""Damaged GGUF files, as target and as draft: the command generates, or says in one line what is wrong."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given

from tests.fuzz.cases import cases, dice
from tests.fuzz.forks import Forks
from tests.fuzz.gguf_mutations import damaged_file
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_head import Head

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


def test_the_bases_are_sound(good: Path, bases: list[Head], duo: Forks, tmp_path: Path) -> None:
    for base in bases:
        path = str(base.write(tmp_path / "base.gguf"))
        for models in (["-m", path], ["-m", str(good), "-md", path, "-td", "1"]):
            status, stderr = duo(*SHORT, *models)
            assert status == 0, stderr


@cases(2000)
@given(draw=dice)
def test_a_damaged_file_ends_no_process(
    good: Path, bases: list[Head], duo: Forks, tmp_path: Path, draw: Random
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(damaged_file(draw.choice(bases), draw))
    models = ["-m", str(good), "-md", str(path), "-td", "1"] if draw.random() < 0.25 else ["-m", str(path)]
    assert duo.fault(*SHORT, *models) == ""
