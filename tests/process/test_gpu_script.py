"""benchmarks/gpu.sh and benchmarks/gpu.py, as far as they go without a card."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.contestants import example
from benchmarks.measure import ModelFile
from benchmarks.summary import Results, Sample
from duo.bench.contestant import Run
from duo.bench.process import Cost
from tests.command import ROOT, environment

GB = 10**9
TARGET = ModelFile(Path("target.gguf"), 33 * GB, "", 32, 8, 128)
DRAFT = ModelFile(Path("draft.gguf"), 3 * GB, "", 16, 8, 64)
LAYER = 1 * GB + TARGET.kv_cache_bytes(2048) / 32
NEEDED = DRAFT.size + DRAFT.kv_cache_bytes(2048)

STUB = """#!/bin/sh
echo "${0##*/} $*" >>"$LOG"
[ -z "$CMAKE_ARGS" ] || echo "CMAKE_ARGS=$CMAKE_ARGS" >>"$LOG"
case "$*" in "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script and programs that only note how they were called."""
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "gpu.sh", tmp_path / "benchmarks")
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("python3", STUB),
        ("nvcc", STUB),
        ("nvidia-smi", "#!/bin/sh\nprintf '8.9\\n8.9\\n8.6\\n'\n"),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def script(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    path = path or os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    env = environment({"PATH": path, "LOG": str(folder / "log"), "JOBS": "3", "CMAKE_ARGS": ""})
    command = ["bash", str(folder / "benchmarks" / "gpu.sh"), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_it_builds_for_the_cards_that_are_here_then_measures(checkout: Path) -> None:
    done = script(checkout, "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    calls = log(checkout)
    assert calls[0] == "python3 -m venv build/gpu/venv"
    assert "CMAKE_ARGS=-DGGML_CUDA=on -DGGML_RPC=on -DCMAKE_CUDA_ARCHITECTURES=86;89" in calls
    assert calls[-2:] == [
        "python -m benchmarks.gpu --prepare --quick",
        "python -m benchmarks.gpu --json build/gpu/result.json --quick",
    ]


def test_what_is_built_is_not_built_again_and_another_card_is(checkout: Path) -> None:
    assert script(checkout).returncode == 0
    n_first = len(log(checkout))
    assert script(checkout).returncode == 0
    assert [line for line in log(checkout)[n_first:] if "pip" in line or "venv" in line] == []
    (checkout / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\n")
    assert script(checkout).returncode == 0
    assert "CMAKE_ARGS=-DGGML_CUDA=on -DGGML_RPC=on -DCMAKE_CUDA_ARCHITECTURES=90" in log(checkout)


def test_a_dry_run_shows_everything_and_does_nothing(checkout: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", checkout / "benchmarks", dirs_exist_ok=True)
    (checkout / "bin" / "python3").unlink()
    (checkout / "bin" / "python3").symlink_to(sys.executable)
    before = sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts)
    done = script(checkout, "--dry-run", "-n", "16")
    assert done.returncode == 0, done.stderr
    for words in ("-m venv", "--no-binary llama-cpp-python", "--prepare -n 16", "-ngl N", "-ngld all --schedule async"):
        assert words in done.stdout
    assert sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts) == before


def test_without_a_card_it_says_so(checkout: Path) -> None:
    (checkout / "bin" / "nvidia-smi").unlink()
    if shutil.which("nvidia-smi"):
        pytest.skip("there is one")
    done = script(checkout)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu.sh: no nvidia-smi")
    assert log(checkout) == []


# How many layers


def test_what_fits_beside_the_draft() -> None:
    assert gpu.fit(TARGET, DRAFT, int(12.5 * LAYER)) == gpu.Layers(("6", "9", "12"), "9")
    assert gpu.fit(TARGET, DRAFT, int(NEEDED + 0.5 * LAYER)).beside == "0"
    assert gpu.fit(TARGET, DRAFT, 99 * GB) == gpu.Layers(("16", "24", "32"), "32")
    with pytest.raises(gpu.CardError, match="does not fit"):
        gpu.fit(TARGET, DRAFT, NEEDED - 1)


def found(*free: int) -> dict[str, object]:
    devices = [{"kind": "GPU", "memory_free": n} for n in free]
    return {"build": {"devices": [{"kind": "CPU", "memory_free": 99 * GB}, *devices]}}


def test_how_much_of_the_card_is_used() -> None:
    options = argparse.Namespace(card=None)
    assert gpu.card_bytes(options, found(6 * GB, 8 * GB), TARGET) == 8 * GB - gpu.MARGIN
    assert gpu.card_bytes(options, found(80 * GB), TARGET) == int(0.3 * TARGET.size), "a target that does not fit"
    options.card = 20.0
    assert gpu.card_bytes(options, found(80 * GB), TARGET) == 20 * GB
    assert gpu.card_bytes(options, found(8 * GB), TARGET) == 8 * GB - gpu.MARGIN, "no more than there is"
    with pytest.raises(gpu.CardError, match="no card"):
        gpu.card_bytes(options, found(), TARGET)


# What is compared


def test_every_way_is_asked_for_as_duo_takes_it() -> None:
    job = example(8)
    ways = {way.name: way.command(job) for way in gpu.all_contestants(["duo"], gpu.Layers(("6", "12"), "9"))}
    assert list(ways) == [
        "CPU alone", "offload 6", "offload 12", "draft on the card, in turns", "draft on the card, overlapped",
        "draft and 9 layers there, overlapped",
    ]  # fmt: skip
    assert ways["offload 12"][-4:] == ["-ngl", "12", "--draft", "0"]
    assert ways["draft and 9 layers there, overlapped"][-6:] == ["-ngl", "9", "-ngld", "all", "--schedule", "async"]
    assert all(command[:3] == ["duo", "-m", "TARGET"] for command in ways.values())


def results(rates: dict[str, float]) -> Results:
    ways = gpu.all_contestants(["duo"], gpu.Layers(("6", "12"), "9"))
    kept = Results([way for way in ways if way.name in rates], ["story"])
    for name, rate in rates.items():
        kept.add(name, "story", Sample(Run(8, rate, "a b c d e f g"), Cost("", "", 0, 1.0, 0.1, 1)))
    return kept


def test_the_bar_is_the_best_of_both_kinds() -> None:
    original = {"CPU alone": 2.04, "offload 6": 2.3, "offload 12": 2.53, "draft on the card, in turns": 3.0,
                "draft on the card, overlapped": 3.79, "draft and 9 layers there, overlapped": 4.48}  # fmt: skip
    bar = gpu.overlapping(results(original), TARGET, DRAFT)
    assert bar.figure == pytest.approx(4.48 / 2.53)
    assert bar.passed
    assert "offload 12" in str(bar.against)
    assert gpu.overlapping(results(original), TARGET, replace(DRAFT, size=4 * GB)).passed is None, "a large draft"
    assert gpu.overlapping(results({"CPU alone": 2.04}), TARGET, DRAFT).passed is None


def test_it_measures_on_the_cpu(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    prompt = ROOT / "benchmarks" / "prompts" / "letter.txt"
    more = ["-r", "1", "-n", "8", "--json", str(file), "--prompts", str(prompt)]
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", *more]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert list(document["contestants"]) == ["CPU alone", "in turns", "overlapped"]
    assert all(way["tokens_per_s"] > 0 for way in document["contestants"].values())
    assert document["bars"][0]["passed"] is None
    assert document["installation"]["build"]["failure"] is None
