"""The laboratory: what it computes by itself, and its files. tests/process runs scenarios."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contestants import Setup, duo
from benchmarks.emulated import Account, DeviceTimes, Emulated
from benchmarks.fastest import distinct
from benchmarks.gpu import Layers, fit
from benchmarks.machine import SIZES, document, measure
from benchmarks.models import PAIRS, prompt_files
from benchmarks.predicted_texts import Trace
from benchmarks.runner import Bar, by_prompt
from benchmarks.samples import FOLDER
from benchmarks.scenarios import SCENARIOS
from duo.bench.prompts import Prompt
from duo.bench.results import Results
from duo.bench.rounds import Contestant, Job, Run, Sample
from duo.diagnose.machine_file import read_machine
from duo.errors import DecodeAborted, DecodeError, DuoError
from duo.llama.model_size import ModelSize
from tests.fakes import FakeContext

FILES = sorted(FOLDER.glob("*.json"))


class Silent:
    def write(self, job: Job, stop: threading.Event) -> Run:
        raise NotImplementedError


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup("", Path("t.gguf"), Path("d.gguf"), [], 1, 16, ["duo"], tmp_path, (), tmp_path, ExitStack())


def test_a_bar_compares_the_fastest_of_each_name() -> None:
    slow, fast, other = (Contestant(name, Silent()) for name in ("peer 1", "peer 2", "duo"))
    results = Results([slow, fast, other], fast)
    for i, (a, b, c) in enumerate(((5, 10, 10), (5, 10, 20), (5, 5, 45))):
        for contestant, rate in ((slow, a), (fast, b), (other, c)):
            results.samples.append(Sample(contestant, i, Prompt(f"p{i}", "?"), Run("a b", 2, rate, {"mb": 9.0})))
    assert str(Bar("duo", "peer", least=3).verdict(results)).startswith("duo over peer 2: 2.621 (")
    assert Bar("duo", most=9.5, figure="mb").verdict(results).passed
    assert Bar("duo", "nothing").verdict(results).passed is None
    assert by_prompt(results)[3] == ["duo", "10.0 (×1.00)", "20.0 (×2.00)", "45.0 (×9.00)"]


def test_scenarios_are_of_known_pairs(setup: Setup) -> None:
    assert set().union(*(scenario.pairs for scenario in SCENARIOS.values())) <= set(PAIRS)
    names = [each.name for each in SCENARIOS["schedules"].contestants(setup)]  # type: ignore[attr-defined]
    assert (len(names), names[:3]) == (9, ["plain", "sync, at most 2", "sync, at most 4"])
    contestant = duo(setup, "name", "-md {draft} -v", may_end=True)
    command = contestant.writer.command(setup.job)  # type: ignore[attr-defined]
    assert command[:3] == ["duo", "-m", "t.gguf"]
    assert command[-5:-1] == ["-md", "d.gguf", "-v", "--json"]
    assert "--ignore-eos" not in command


@pytest.mark.parametrize("pair", PAIRS)
def test_each_prompt_is_a_category(pair: str) -> None:
    files = prompt_files(PAIRS[pair][2])
    assert len({path.stem for path in files}) == len(files) >= 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_machine_is_complete(path: Path) -> None:
    for pair in read_machine(path).values():
        assert pair.source
        assert pair.machine.noise
        assert len(pair.machine.target_s) == 17
        assert (FOLDER / "traces" / f"{pair.traces}.json").is_file()


def test_what_is_computed_from_texts() -> None:
    assert distinct("a b c d " * 3) == 4 / 9
    assert Trace(4, [(8.0, True), (8.0, True), (0.1, False), (8.0, True)] * 8, []).expected(3) == (3 + 7 * 4) / 8


def test_layers_that_fit_a_card() -> None:
    target, draft = (_size(n, size) for n, size in ((32, 33), (16, 3)))
    found = fit(target, draft, 12 * 10**9)
    assert (len(found.partial), found.partial[-1] > found.with_draft) == (3, True)
    assert fit(target, draft, 99 * 10**9) == Layers([16, 24, 32], 32)
    with pytest.raises(DuoError, match="does not fit"):
        fit(target, draft, 10**9)


def _size(n_layers: int, gigabytes: int) -> ModelSize:
    fields: dict[str, Any] = {"layers": (0,) * n_layers, "n_bytes": gigabytes * 10**9}
    return type("Size", (), fields | {"cache_bytes": lambda *_: (2**21,) * n_layers})()  # type: ignore[no-any-return]


def test_an_emulated_decode_takes_as_long_as_its_device() -> None:
    account = Account(2.0)
    target = Emulated(FakeContext(), DeviceTimes((0.01, 0.011), (0.01, 0.011)), account)
    target.decode([1])
    target.decode([1, 2], 2)
    (_, one_s), (_, two_s) = account.times
    assert [one_s, two_s] == pytest.approx([0.02, 0.022], rel=0.3)
    account.close()
    account.add(0.05, 0.02)
    with pytest.raises(DecodeError, match=r"^1 of 1 decodes .* factor of 5 or more, not 2$"):
        account.close()
    slow = Emulated(FakeContext(), DeviceTimes((60.0,), (60.0,)), Account(1.0))
    threading.Timer(0.05, slow.abort).start()
    with pytest.raises(DecodeAborted):
        slow.decode([1])


def test_a_pair_is_measured() -> None:
    target, draft = (FakeContext(lambda _: 0, lambda: None, 512, 64, 300) for _ in range(2))
    found = measure(target, draft, n_threads=2, n_rounds=2)
    assert {len(times) for times in found.target.values()} == {2}
    written = document("a machine", 2, {"demo": replace(found)})
    assert set(written["pairs"]["demo"]["target_ms"]) == {str(n) for n in SIZES}
