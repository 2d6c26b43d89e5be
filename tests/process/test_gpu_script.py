"""benchmarks/gpu.sh and benchmarks/gpu.py, as far as they run without a card."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from benchmarks.contestants import Setup
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
    for name, text in (("python3", STUB), ("nvcc", STUB), ("glslc", STUB), ("nvidia-smi", CARDS)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def script(
    folder: Path, *arguments: str, status: int = 0, variables: dict[str, str] | None = None
) -> tuple[str, list[str]]:
    """What it writes to stdout or, if it fails, to stderr; and the calls it has made."""
    path, log = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]), folder / "log"
    log.write_text("")
    own = {"PATH": path, "LOG": str(log), "JOBS": "3", "CMAKE_ARGS": "", "BACKEND": "cuda"}
    env = environment(own | (variables or {}))
    command = ["bash", str(folder / "benchmarks" / "gpu.sh"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout, log.read_text().splitlines()


def test_it_builds_once_for_the_cards_of_this_machine_and_measures(checkout: Path) -> None:
    _, calls = script(checkout, "--quick")
    assert calls[0] == "python3 -m venv build/gpu/venv --clear", "pip would keep what is built for other cards"
    assert f"{CMAKE_ARGS}86;89" in calls
    measuring = (
        "python -m benchmarks.gpu --prepare --quick",
        "python -m benchmarks.gpu --json build/gpu/result.json --quick",
    )
    assert calls[-2:] == [*measuring]
    assert script(checkout, "--quick")[1] == [*measuring], "what is built is not built again"
    (checkout / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 9.0\n")
    assert f"{CMAKE_ARGS}90" in script(checkout)[1], "but for another card it is"


def test_it_builds_for_other_cards(checkout: Path) -> None:
    (checkout / "bin" / "nvidia-smi").unlink()
    vulkan = {"BACKEND": "vulkan", "CMAKE_ARGS": "-DVulkan_INCLUDE_DIR=/headers"}
    _, calls = script(checkout, "--quick", variables=vulkan)
    assert "CMAKE_ARGS=-DGGML_VULKAN=on -DGGML_RPC=on -DVulkan_INCLUDE_DIR=/headers" in calls
    assert "python -m benchmarks.gpu --json build/gpu/result.json --quick" in calls
    uname = checkout / "bin" / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    assert "CMAKE_ARGS=-DGGML_METAL=on -DGGML_RPC=on" in script(checkout, variables={"BACKEND": ""})[1]


def test_it_names_what_is_missing(checkout: Path) -> None:
    uname = checkout / "bin" / "uname"
    uname.write_text("#!/bin/sh\necho Linux\n")
    uname.chmod(0o755)
    for backend, status, words in (("metal", 1, "needs a Mac"), ("rocm", 2, "use cuda, vulkan or metal")):
        said, calls = script(checkout, status=status, variables={"BACKEND": backend})
        assert said.startswith(f"gpu.sh: BACKEND={backend}")
        assert words in said
        assert calls == []


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
    cache = 2 * 512 * 2048 * 2
    target, draft = (
        SimpleNamespace(layers=(0,) * n, n_bytes=size, cache_bytes=lambda _, n=n: (cache,) * n)
        for n, size in ((32, 33 * GB), (16, 3 * GB))
    )
    monkeypatch.setattr("duo.llama.model_size.model_size", lambda c: {"target": target, "draft": draft}[c.path.stem])
    paths = Path("target.gguf"), Path("draft.gguf")
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

    def used(*free: int, card: float | None = None, quick: bool = False) -> int:
        devices = [{"kind": "CPU", "memory_free": 99 * GB}, *({"kind": "GPU", "memory_free": n} for n in free)]
        options = argparse.Namespace(card=card, quick=quick, models=None)
        return gpu.card_bytes(options, {"build": {"devices": devices}}, target)

    assert used(6 * GB, 8 * GB) == 8 * GB - gpu.MARGIN
    assert used(80 * GB) == int(0.3 * 33 * GB), "a target that does not fit"
    assert used(80 * GB, card=20.0) == 20 * GB
    assert used(8 * GB, card=20.0) == 8 * GB - gpu.MARGIN, "no more than there is"
    assert used(80 * GB, quick=True) == 33 * GB, "the demo pair's draft is more than a share of its target"
    with pytest.raises(gpu.CardError, match="no GPU"):
        used()


def test_the_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry-run", "--duo", "duo", "-n", "8"])
    assert gpu.main() == 0
    doctor, *commands = capsys.readouterr().out.splitlines()
    assert doctor == "duo doctor --json"
    common = "duo -m TARGET -f PROMPT -n 8 -c 2048 --ignore-eos "
    assert [command.removeprefix(common).removesuffix(" --json report.json") for command in commands] == [
        "-md DRAFT --no-profile --no-warmup",
        "-ngl 0 --lookup off --exact --no-profile",
        "-md DRAFT -ngl 0 -ngld all --lookup off --exact --no-profile --schedule async",
        "-ngl M --lookup off --exact --no-profile",
        "-md DRAFT -ngl M -ngld all --lookup off --exact --no-profile --schedule async",
        "-ngl 0 --lookup off", "-ngl N --lookup off", "-md DRAFT -ngl 0 -ngld all --lookup off --schedule sync",
        "-md DRAFT -ngl 0 -ngld all --lookup off --schedule async --branches 0",
        "-md DRAFT -ngl 0 -ngld all --lookup off --schedule async",
        "-md DRAFT -ngl M -ngld all --lookup off --schedule async",
        "-ngl 0", "-md DRAFT -ngl 0 -ngld all --schedule async", "-md OTHER -ngl 0 -ngld all --lookup off",
        "--lookup off", "-md DRAFT --no-profile", "-md DRAFT",
    ]  # fmt: skip


def test_each_bar_is_about_one_placement(tmp_path: Path) -> None:
    """Bars find contestants by the beginnings of their names."""
    for name, size in (("target", 1000), ("draft", 100)):
        (tmp_path / name).write_bytes(bytes(size))
    setup = Setup("", tmp_path / "target", tmp_path / "draft", (), 1, 8, ["duo"], tmp_path, (), tmp_path, ExitStack())
    names = [c.name for c in gpu.contestants(setup, gpu.Layers(("4", "8"), "6"), tmp_path / "other.gguf")]
    found = {
        (bar.contestant, bar.over): [
            [name for name in names if name.startswith(prefix or "-")] for prefix in (bar.contestant, bar.over)
        ]
        for bar in gpu.bars(setup)
    }
    (overlap,) = (sides for (first, _), sides in found.items() if first == gpu.CONCURRENT)
    assert overlap == [
        ["async without branches, draft on the card", "async, draft on the card",
         "async, draft and 6 layers on the card"],
        ["offload 4", "offload 8"],
    ]  # fmt: skip
    others = [side for sides in found.values() if sides is not overlap for side in sides]
    assert {len(side) for side in others} == {1}
    (tmp_path / "draft").write_bytes(bytes(101))
    assert gpu.CONCURRENT not in [bar.contestant for bar in gpu.bars(setup)], "the draft is too large for this bar"


def test_it_measures_on_the_cpu(tmp_path: Path) -> None:
    tiny = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02)
    other = tiny_llama(tmp_path / "other.gguf", words=("the", "cat", "mat", "dog"), seed=2, depth=0.02)
    file, prompt = tmp_path / "result.json", tmp_path / "prompt.txt"
    prompt.write_text("the cat sat on the mat\n", encoding="utf-8")
    more = ["--models", tiny, tiny, "--other", other, "-n", "8", "--minutes", "0", "--json", file, "--prompts", prompt]
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", *map(str, more)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {"commit", "hardware", "versions", "load_before"} <= set(document)
    assert document["installation"]["build"]["failure"] is None
    pair = document["pairs"]["tiny"]
    assert [row["mode"] for row in pair["rows"]] == [
        "CPU alone", "sync, draft on the CPU", "async without branches, draft on the CPU", "async, draft on the CPU",
        "lookup, CPU alone", "lookup and async, draft on the CPU", "other vocabulary, draft on the CPU",
        "no options, target alone", "no options, first run", "no options, later runs",
    ]  # fmt: skip
    assert all(run["tokens_per_s"] > 0 and run["peak_bytes"] > 0 for run in pair["runs"])
    assert {run["round"] for run in pair["runs"]} == {1}, "no time is left for a second round"
    assert (pair["baseline"], pair["complete"]) == ("CPU alone", True)
    assert [(bar["name"], bar["passed"]) for bar in pair["bars"]] == [
        ("text with --exact, target on the CPU, with the draft, as without", True),
        ("commands without a failure", True),
    ], "times do not matter in a test run"
    assert [run["startup_s"] > 0 for run in pair["first_runs"].values()] == [True] * 4
    assert pair["commands"]["sync, draft on the CPU"][-4:] == ["--schedule", "sync", "--json", "report.json"]
    assert list(pair["models"]["target"]["sha256"]) == ["tiny.gguf"]
    report = file.with_suffix(".md").read_text()
    assert report == done.stdout
    assert "share" in report.splitlines()[2], "the table names what the cores share"
    assert "\n1 of 16 rounds fitted into 0 minutes." in report
    assert not any(str(path) in report for path in (tmp_path, Path.home(), ROOT)), "it can be pasted"
