"""benchmarks/gpu.sh and benchmarks/gpu.py, as far as they run without a card."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from duo.llama.gguf_file import ModelSize
from tests.command import ROOT, environment
from tests.gguf_files import tiny_llama

GB = 10**9

STUB = """#!/bin/sh
echo "${0##*/} $*" >>"$LOG"
[ -z "$CMAKE_ARGS" ] || echo "CMAKE_ARGS=$CMAKE_ARGS" >>"$LOG"
case "$*" in "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;; esac
"""
CARDS = "#!/bin/sh\nprintf '8.9\\n8.9\\n8.6\\n'\n"
CMAKE_ARGS = "CMAKE_ARGS=-DGGML_CUDA=on -DGGML_RPC=on -DCMAKE_CUDA_ARCHITECTURES="


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script and programs that only note how they were called."""
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "gpu.sh", tmp_path / "benchmarks")
    (tmp_path / "bin").mkdir()
    for name, text in (("python3", STUB), ("nvcc", STUB), ("nvidia-smi", CARDS)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def script(folder: Path, *arguments: str, status: int = 0) -> tuple[str, list[str]]:
    """What it writes to stdout or, if it fails, to stderr; and the calls it has made."""
    path, log = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]), folder / "log"
    log.write_text("")
    env = environment({"PATH": path, "LOG": str(log), "JOBS": "3", "CMAKE_ARGS": ""})
    command = ["bash", str(folder / "benchmarks" / "gpu.sh"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout, log.read_text().splitlines()


def test_it_builds_once_for_the_cards_of_this_machine_and_measures(checkout: Path) -> None:
    _, calls = script(checkout, "--quick")
    assert calls[0] == "python3 -m venv build/gpu/venv"
    assert f"{CMAKE_ARGS}86;89" in calls
    measuring = (
        "python -m benchmarks.gpu --prepare --quick",
        "python -m benchmarks.gpu --json build/gpu/result.json --quick",
    )
    assert calls[-2:] == [*measuring]
    assert script(checkout, "--quick")[1] == [*measuring], "what is built is not built again"
    (checkout / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\n")
    assert f"{CMAKE_ARGS}90" in script(checkout)[1], "but for another card it is"


def test_a_dry_run_shows_every_command_and_runs_none(checkout: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", checkout / "benchmarks", dirs_exist_ok=True)
    (checkout / "bin" / "python3").unlink()
    (checkout / "bin" / "python3").symlink_to(sys.executable)  # without the environment's packages
    (checkout / "log").touch()
    before = sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts)
    shown, calls = script(checkout, "--dry-run", "-n", "16")
    for words in ("-m venv", "--no-binary llama-cpp-python", "--prepare -n 16", "-ngl N", "-ngld all --schedule async"):
        assert words in shown
    assert calls == []
    assert sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a card")
def test_without_a_card_it_fails(checkout: Path) -> None:
    (checkout / "bin" / "nvidia-smi").unlink()
    said, calls = script(checkout, status=1)
    assert said.startswith("gpu.sh: no nvidia-smi")
    assert calls == []


def test_the_layers_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = (
        ModelSize((0,) * n, 0, size, ((512, 512),) * n, 0, 0, 0, 0) for n, size in ((32, 33 * GB), (16, 3 * GB))
    )
    monkeypatch.setattr("duo.llama.gguf_file.model_size", lambda c: {"target": target, "draft": draft}[c.path.stem])
    paths, cache = (Path("target.gguf"), Path("draft.gguf")), 2 * 512 * 2048 * 2
    layer, needed = GB + cache * 32 / 33, 3 * GB + 16 * cache
    assert gpu.fit(*paths, int(12.5 * layer)) == gpu.Layers(("6", "9", "12"), "9")
    assert gpu.fit(*paths, int(needed + 0.5 * layer)).with_draft == "0"
    assert gpu.fit(*paths, 99 * GB) == gpu.Layers(("16", "24", "32"), "32")
    with pytest.raises(gpu.CardError, match="does not fit"):
        gpu.fit(*paths, needed - 1)


def test_how_much_of_the_card_is_used(tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    with target.open("wb") as file:
        file.truncate(33 * GB)

    def used(*free: int, card: float | None = None) -> int:
        devices = [{"kind": "CPU", "memory_free": 99 * GB}, *({"kind": "GPU", "memory_free": n} for n in free)]
        return gpu.card_bytes(argparse.Namespace(card=card), {"build": {"devices": devices}}, target)

    assert used(6 * GB, 8 * GB) == 8 * GB - gpu.MARGIN
    assert used(80 * GB) == int(0.3 * 33 * GB), "a target that does not fit"
    assert used(80 * GB, card=20.0) == 20 * GB
    assert used(8 * GB, card=20.0) == 8 * GB - gpu.MARGIN, "no more than there is"
    with pytest.raises(gpu.CardError, match="no GPU"):
        used()


def test_the_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry-run", "--duo", "duo", "-n", "8"])
    assert gpu.main() == 0
    doctor, *commands = capsys.readouterr().out.splitlines()
    assert doctor == "duo doctor --json"
    common = "duo -m TARGET -f PROMPT -n 8 -c 2048 --ignore-eos -md DRAFT --lookup off "
    assert [command.removeprefix(common).removesuffix(" --json report.json") for command in commands] == [
        "-ngl 0 --draft 0", "-ngl N --draft 0", "-ngl 0 -ngld all --schedule sync", "-ngl 0 -ngld all --schedule async",
        "-ngl M -ngld all --schedule async",
    ]  # fmt: skip


def test_it_measures_on_the_cpu(tmp_path: Path) -> None:
    tiny = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02)
    file, prompt = tmp_path / "result.json", tmp_path / "prompt.txt"
    prompt.write_text("the cat sat on the mat\n", encoding="utf-8")
    more = ["--models", tiny, tiny, "-r", "1", "-n", "8", "--json", file, "--prompts", prompt]
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", *map(str, more)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {"commit", "hardware", "versions", "load_before"} <= set(document)
    assert document["installation"]["build"]["failure"] is None
    pair = document["pairs"]["tiny"]
    assert [row["mode"] for row in pair["rows"]] == ["CPU alone", "sync", "async"]
    assert all(run["tokens_per_s"] > 0 and run["peak_bytes"] > 0 for run in pair["runs"])
    assert (pair["baseline"], pair["bars"], pair["complete"]) == ("CPU alone", [], True), "the draft is too large"
    assert pair["commands"]["sync"][-4:] == ["--schedule", "sync", "--json", "report.json"]
    assert list(pair["models"]["target"]["sha256"]) == ["tiny.gguf"]
    assert file.with_suffix(".md").read_text() == done.stdout
    assert "share" in done.stdout.splitlines()[2], "the table names what the cores share"
