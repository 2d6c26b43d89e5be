"""The report of benchmarks.gpu: rounds within a time, the machine, what first runs learn, exact texts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_report
from benchmarks.contestants import Duo, Setup
from benchmarks.gpu_report import InTime, OneRun
from duo.bench.contestant import Contestant, Job, ParseError, Run
from duo.bench.process import Cost
from duo.bench.prompts import Prompt
from duo.errors import DuoError

FIVE = [Prompt(str(i), "text") for i in range(5)]
TINY = Path("target.gguf")
INSTALLED = {
    "host": {"cpu": "a CPU", "memory_total": 64e9, "system": "Linux", "release": "6.1", "machine": "x86_64"},
    "cores": {"usable": 8},
    "versions": {"duo": "0.1.0", "llama.cpp": None},
    "build": {
        "backends": ["Vulkan", "CPU"],
        "features": ["AVX2"],
        "devices": [
            {"name": "Vulkan0", "description": "a card", "kind": "GPU", "memory_free": 7.5e9, "memory_total": 8e9},
            {"name": "CPU", "description": "a CPU", "kind": "CPU", "memory_free": 1e9, "memory_total": 2e9},
        ],
    },
    "folders": {"cache": {"path": "/home/somebody/.cache"}},
}


def made(seconds: Sequence[float], limit: float) -> int:
    """How many rounds of these lengths are begun."""
    clock = [100.0]
    found = 0
    for _, length in zip(InTime(FIVE, 100 + limit, lambda: clock[0]), seconds, strict=False):
        found += 1
        clock[0] += length
    return found


@pytest.mark.parametrize(
    ("seconds", "limit", "n"),
    [
        ([10] * 5, 35, 3),  # a fourth would end after the limit
        ([10] * 5, 40, 4),
        ([10] * 5, 1000, 5),
        ([10] * 5, -5, 1),  # the first round is never left out
        ([10, 25, 1, 1, 1], 60, 3),  # another one may take as long as the longest
    ],
)
def test_as_many_rounds_as_fit(seconds: Sequence[float], limit: float, n: int) -> None:
    assert made(seconds, limit) == n
    assert len(InTime(FIVE, 0)) == 5, "take() shows the most there may be"


def test_the_machine_without_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "git_commit", lambda: {"commit": "0123456789abcdef", "changed": True})
    monkeypatch.setattr(gpu_report, "driver", lambda backends: f"driver of {backends[0]}")
    assert gpu_report.machine_lines(INSTALLED) == [
        "- machine: a CPU, 8 cores, 64.0 GB, Linux 6.1 x86_64",
        "- card: Vulkan0: a card, 8.0 GB, 7.5 GB free",
        "- driver: driver of Vulkan",
        "- build: Vulkan, CPU; AVX2",
        "- versions: duo 0.1.0, llama.cpp not installed; commit 0123456789, changed",
    ]


@pytest.mark.parametrize(
    ("backends", "output", "version"),
    [
        (["CUDA", "CPU"], "550.54.15\n550.54.15\n", "550.54.15"),
        (
            ["Vulkan", "CPU"],
            "\tdriverVersion      = 0.0.1\n\tdriverInfo         = Mesa 22.3.6 (LLVM 15.0.6)\n",
            "Mesa 22.3.6 (LLVM 15.0.6)",
        ),
        (["CUDA"], "NVIDIA-SMI has failed\n", ""),
        (["CPU"], "550.54.15\n", ""),
    ],
)
def test_the_driver(backends: list[str], output: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "run_process", lambda *_, **__: Cost(output, "", 0, 0.1, 0))
    assert gpu_report.driver(backends) == version


def test_no_program_tells_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> Cost:
        raise FileNotFoundError

    monkeypatch.setattr(gpu_report, "run_process", missing)
    assert gpu_report.driver(["CUDA", "Vulkan"]) == ""


def ran(alone: float | None = None, beside: float | None = None, text: str = "", said: str = "") -> OneRun:
    """A run that learned these T(1) in ms."""
    times = {"alone": {"1": alone} if alone else {}, "beside": {"1": beside} if beside else {}}
    statistics: dict[str, Any] = {"draft": None, "policy": {"target_ms": times}, "generation": {"tokens_per_s": 9.0}}
    return OneRun(text, said, statistics, 2.5)


@pytest.mark.parametrize(
    ("first", "last", "ratio", "passed"),
    [
        (ran(12.0, 40.0), ran(10.0, 40.0), 1.2, True),
        (ran(1000.0), ran(10.0), 100.0, False),  # compiling was learned
        (ran(None, 5.0), ran(10.0, 10.0), 0.5, False),
        (ran(10.0), ran(None, 10.0), None, None),
    ],
)
def test_what_the_first_run_learned_over_the_third(
    first: OneRun, last: OneRun, ratio: float | None, passed: bool | None
) -> None:
    found = gpu_report.warm_up([first, ran(1.0, 1.0), last])
    assert (found.figure and found.figure.middle, found.passed) == (ratio, passed)


def test_what_did_not_run_was_not_measured() -> None:
    assert gpu_report.warm_up([None, ran(1.0), ran(1.0)]).passed is None
    assert gpu_report.warm_up([ran(1.0), ran(1.0), None]).passed is None


def test_a_target_alone_has_no_policy() -> None:
    assert OneRun("", "", {"policy": None}, 0.0).target_ms("alone") is None


def test_what_first_runs_learn_as_a_table() -> None:
    said = "duo: layers on devices (-ngl, -ngld): target 13 of 23 on CUDA0, draft 31 of 31 on CUDA0\nspeed"
    runs = {"run 1": ran(12.3456, said=said), "run 2": None, "without": ran(beside=7.0)}
    heading, _, _, _, first, without = gpu_report.first_lines(runs)
    assert heading.endswith("chosen by duo: target 13 of 23 on CUDA0, draft 31 of 31 on CUDA0.")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (first, without)]
    assert cells[0] == ["run 1", "2.50", "12.35", "", "", "9.00"]
    assert cells[1] == ["without", "2.50", "", "7.00", "", "9.00"]


def texts(alone: str, drafted: str, on_card: str = "same", said: str = "") -> dict[str, OneRun | None]:
    return {
        "on the CPU": ran(text=alone, said=said),
        "on the CPU, with the draft": ran(text=drafted),
        "with 9 layers on the card": ran(text="same"),
        "with 9 layers on the card, with the draft": ran(text=on_card),
    }


def test_exact_texts() -> None:
    (verdict,) = gpu_report.exact(texts("the same", "the same", "samE"))
    assert verdict.passed, "the bar is for the target on the CPU"
    assert gpu_report.exact_lines(texts("the same", "the same", "samE")) == [
        "- text with --exact, target on the CPU, with the draft: identical",
        "- text with --exact, target with 9 layers on the card, with the draft: differs from character 3",
    ]
    (verdict,) = gpu_report.exact(texts("the same", "the other"))
    assert verdict.passed is False
    warned = texts("the same", "the other", said="duo: warning: Q4_K is not bit-equal from five rows on: near-ties …")
    assert list(gpu_report.exact(warned)) == []
    failed = texts("the same", "the same") | {"on the CPU, with the draft": None}
    assert list(gpu_report.exact(failed)) == []
    assert len(gpu_report.exact_lines(failed)) == 1


def test_one_run_takes_start_up_and_keeps_no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    statistics: dict[str, Any] = {name: {} for name in ("prompt", "draft", "lookup", "memory", "policy", "threads")}
    statistics |= {"generation": {"seconds": 3.0}, "options": {"model": "/home/somebody/target.gguf"}}

    def process(*_: object) -> Cost:
        (tmp_path / "report.json").write_text(json.dumps(statistics), encoding="utf-8")
        return Cost("a text", "", 0, 5.0, 0)

    found = one_run(process, monkeypatch, tmp_path)
    assert (found.text, found.startup_s) == ("a text", 2.0)
    assert "/home" not in json.dumps(found.figures())
    assert not (tmp_path / "report.json").exists()
    with pytest.raises(DuoError, match="the name: duo exited with 1: no such device"):
        one_run(lambda *_: Cost("", "duo: x\nno such device\n", 1, 5.0, 0), monkeypatch, tmp_path)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    (tmp_path / "prompt.txt").write_text("a prompt\n", encoding="utf-8")
    target, files, duo = tmp_path / "models" / "target.gguf", [tmp_path / "prompt.txt"], ["duo"]
    return Setup("", target, target, files, 2, 8, duo, tmp_path, (), tmp_path, ExitStack())


class Breaks:
    """Generates texts, and fails from the text of this number on."""

    def __init__(self, n: int) -> None:
        self.n_left = n

    def write(self, job: Job, _: object) -> Run:
        self.n_left -= 1
        if self.n_left <= 0:
            raise ParseError(f"exited with -11: {job.target}: no memory")
        return Run(8, 10.0, "one two three four five six")


def test_a_command_that_fails_ends_neither_the_others_nor_the_report(setup: Setup) -> None:
    found = [Contestant(name, Breaks(n)) for name, n in (("CPU alone", 9), ("offload 4", 1), ("async", 2))]
    scenario = gpu_report.Placements("", contestants=lambda _: found, baseline="CPU alone", began=time.monotonic())
    results, complete = scenario.measure(setup)
    assert complete
    assert [len(results.of(contestant)) for contestant in results.contestants] == [2, 0, 1]
    assert [gpu_report.without_paths(text, setup) for text in scenario.failures] == [
        "exited with -11: target.gguf: no memory: skipped"
    ] * 2
    assert "offload 4" in scenario.table(results)[3]
    with pytest.raises(ParseError):  # there is nothing to compare with
        replace(scenario, contestants=lambda _: [Contestant("CPU alone", Breaks(1))]).measure(setup)


def one_run(process: Callable[..., Cost], monkeypatch: pytest.MonkeyPatch, folder: Path) -> OneRun:
    monkeypatch.setattr(gpu_report, "run_process", process)
    job = Job(TINY, TINY, "", folder / "prompt.txt", 8, 512)
    return gpu_report.one_run(Duo("the name", ["-md", "{draft}"], ["duo"], {}), job)
