"""The laboratory: what it computes by itself, and its files. tests/process runs scenarios."""

import math
import random
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks import oracle, page
from benchmarks.contestants import Setup, duo
from benchmarks.emulated import Account, DeviceTimes, Emulated
from benchmarks.emulation import Emulation
from benchmarks.engine import Instant
from benchmarks.models import PAIRS, prompt_files
from benchmarks.oracle import N_MAX, OFF, Case, best, fixed, late
from benchmarks.regret import N_LONG, SHORT, WRONG, Judged, Run, tables, verdicts
from benchmarks.runner import Bar, by_prompt, take
from benchmarks.samples import FOLDER, N_TOKENS, cases, texts, tilted
from benchmarks.scenarios import SCENARIOS
from benchmarks.traces import Trace
from duo.bench.results import Results
from duo.bench.rounds import Contestant, Job, Prompt, Sample
from duo.bench.rounds import Run as Text
from duo.config import DraftConfig
from duo.diagnose.measure import Interrupted
from duo.diagnose.prospects import read_machine
from duo.errors import DecodeAborted, DecodeError
from duo.remote.drafts import RemoteDrafts
from duo.speculation.machine import Machine
from duo.speculation.types import Logits

FLAT = (0.1,) * (N_MAX + 1)
MACHINE = Machine(FLAT, 0.01, FLAT, 0.02, read_s=0.001, pair_s=0.012)
GOOD = Run("k=4", share=1.0, over_off=0.5)


def test_a_bar_compares_the_fastest_of_each_name() -> None:
    slow, fast, other = (Contestant(name, Mock()) for name in ("peer 1", "peer 2", "duo"))
    results = Results([slow, fast, other], fast)
    for i, (a, b, c) in enumerate(((5, 10, 10), (5, 10, 20), (5, 5, 45))):
        for contestant, rate in ((slow, a), (fast, b), (other, c)):
            results.samples.append(Sample(contestant, i, Prompt(f"p{i}", "?"), Text("a b", 2, rate, {"mb": 9.0})))
    assert str(Bar("duo", "peer", least=3).verdict(results)).startswith("duo over peer 2: 2.621 (")
    assert Bar("duo", most=9.5, figure="mb").verdict(results).passed
    assert Bar("duo", "nothing").verdict(results).passed is None
    assert by_prompt(results)[3] == ["duo", "10.0 (×1.00)", "20.0 (×2.00)", "45.0 (×9.00)"]


@pytest.mark.parametrize(("end", "measured"), [(-math.inf, ["a"]), (math.inf, ["a", "b", "b", "a"])])
def test_also_the_first_round_ends_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, end: float, measured: list[str]
) -> None:
    monkeypatch.setattr(random.Random, "shuffle", lambda _, order: order.reverse())

    def write(_job: Job, stop: threading.Event) -> Text:
        if stop.is_set():
            raise Interrupted
        return Text("a b", 2, 10.0)

    results = Results([Contestant(name, write) for name in "ba"])
    setup = Mock(end=end, job=Job(Path("m.gguf"), None, "", Path(), 2, 64))
    assert take(results, [Prompt("p", "one"), Prompt("q", "two")], setup)
    assert [sample.contestant.name for sample in results.samples] == measured
    assert len(by_prompt(results)) == 3


def test_live_events_may_begin_with_the_last_text_of_before() -> None:
    watching, begins = object.__new__(page.Subscription), {"id": 2, "state": "begins"}
    watching._begun, watching._has_begun = [], False
    for name, document in (("state", {}), ("progress", {"id": 1}), ("text", begins), ("spans", {"id": 2})):
        watching._check(name, document)
    with pytest.raises(ValueError, match="a text that has not begun: 1"):
        watching._check("progress", {"id": 1})


def test_scenarios_are_of_known_pairs(tmp_path: Path) -> None:
    assert set().union(*(scenario.pairs for scenario in SCENARIOS.values())) <= set(PAIRS)
    setup = Setup("", Path("t.gguf"), Path("d.gguf"), [], 1, 16, ["duo"], tmp_path, (), tmp_path, ExitStack())
    names = [each.name for each in SCENARIOS["first-token"].contestants(setup)]  # type: ignore[attr-defined]
    assert names == ["target alone", "with a draft"]
    command = duo(setup, "name", "-md {draft} -v").write.command(setup.job)  # type: ignore[attr-defined]
    assert command[:3] == ["duo", "-m", "t.gguf"]
    assert command[-5:-1] == ["-md", "d.gguf", "-v", "--json"]


def test_files_are_complete() -> None:
    for _, _, folders in PAIRS.values():
        files = prompt_files(folders)
        assert len({path.stem for path in files}) == len(files) >= 4
    for path in FOLDER.glob("*.json"):
        for pair in read_machine(path).values():
            assert pair.source
            assert pair.machine.noise
            assert len(pair.machine.target_s) == N_MAX + 1
            assert len(texts(pair.traces)) >= 4


def test_an_emulated_decode_takes_as_long_as_its_device() -> None:
    account = Account(20.0)
    target = Emulated(Instant(), DeviceTimes((0.025, 0.075), (0.025, 0.075)), account)
    target.decode([1])
    target.decode([1, 2], 2)
    (_, one_s), (_, two_s) = account.times
    assert 0.499 < one_s < 1.5
    assert 1.499 < two_s < 4.5
    account.close()
    account.add(0.5, 0.2)
    with pytest.raises(DecodeError, match=r"^1 of 1 decodes .* factor of 50 or more, not 20$"):
        account.close()
    slow = Emulated(Instant(), DeviceTimes((60.0,), (60.0,)), Account(1.0))
    threading.Timer(0.05, slow.abort).start()
    with pytest.raises(DecodeAborted):
        slow.decode([1])


class Paced(Instant):
    """Its decodes take `pace` seconds for each token, by a clock that each thread has for itself."""

    n_branches, passed, pace = 8, threading.local(), 0.0

    @classmethod
    def now(cls) -> float:
        return getattr(cls.passed, "s", 0.0)

    def decode(self, tokens: Sequence[Any], n_rows: int = 1) -> Logits:  # noqa: ARG002
        self.n_past += len(tokens)
        self.passed.s = self.now() + len(tokens) * self.pace
        return np.zeros((0, 1))

    decode_each = decode


@pytest.mark.parametrize(
    ("paces", "least", "factor"),
    [
        ((0.001, 0.003), 0.0, 1.3 * 9 * 0.003 / 0.00474),  # nine sequences of the draft
        ((0.050, 0.001), 0.0, 1.3 * 17 * 0.050 / (0.038 + 9 * 0.00225)),  # seventeen tokens of the target
        ((0.001, 0.003), 10.0, 10.0),
        ((0.001, 0.0001), 0.0, 0.050 / 0.025),  # duo's own time
    ],
)
def test_an_emulation_is_as_slow_as_its_slowest_decode(
    monkeypatch: pytest.MonkeyPatch, paces: tuple[float, float], least: float, factor: float
) -> None:
    monkeypatch.setattr("benchmarks.emulation.time.perf_counter", Paced.now)
    emulation, caches = Emulation(read_machine(FOLDER / "two-cards.json")["draft-4ms"], Account(1.0)), []
    for pace in paces:
        caches.append(Mock(context=Paced()))
        caches[-1].context.pace = pace
    emulation.choose(Mock(target_cache=caches[0], draft_cache=caches[1]), least)
    assert emulation.account.slow_down == pytest.approx(factor, abs=0.01)
    assert [cache.context.n_past for cache in caches] == [0, 0], "they are empty again"


def test_a_text_that_was_disturbed_is_written_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    emulation = Emulation(read_machine(FOLDER / "two-cards.json")["draft-4ms"], account := Account(1.0))
    figures = ("target_ms_per_decode", "draft_ms_per_token", "prompt_tokens_per_s", "first_token_s")
    took_s = [0.3, 0.1, 0.3, 0.3, 0.3]

    def write(*_: object) -> Text:
        account.add(took_s.pop(0), 0.2)
        return Text("a b", 2, 9.0, dict.fromkeys(figures))

    monkeypatch.setattr("benchmarks.emulation.write_here", write)
    assert emulation.write(Mock(), Mock(), Mock(), Mock()).tokens == 2
    assert len(took_s) == 3
    with pytest.raises(DecodeError, match="took longer"):
        emulation.write(Mock(), Mock(), Mock(), Mock())
    assert not took_s


@pytest.mark.parametrize(("n_late", "n_written"), [(0, 1), (2, 3), (9, 3)])
def test_a_text_in_which_a_remote_draft_was_late_is_written_once_more_by_another_one(
    monkeypatch: pytest.MonkeyPatch, n_late: int, n_written: int
) -> None:
    emulation = Emulation(read_machine(FOLDER / "m2-m1.json", N_MAX)["small-batches"], Account(1.0))
    remote, backs, written = Mock(spec=RemoteDrafts, connected=[]), list[Mock](), list[Mock]()

    def back(*_: object) -> nullcontext[Mock]:
        backs.append(Mock(status=None, stderr="late\n"))
        remote.connected = [Mock()]
        return nullcontext(backs[-1])

    def write(*_: object) -> Text:
        written.append(remote.connected[0])
        backs[-1].status = -9 if len(written) <= n_late else None
        return Text("a b", 2, 9.0)

    monkeypatch.setattr(Emulation, "write", write)
    monkeypatch.setattr("benchmarks.servers.back", back)
    monkeypatch.setattr("benchmarks.servers.Relay", lambda *_: nullcontext(Mock(port=1)))
    engine = Mock(slot=Mock(remote=remote, drafting=DraftConfig(4, 8)))
    with ExitStack() as stack:
        (contestant,) = emulation.far({"both": 0}, engine, Mock(), 1, stack)
        with nullcontext() if n_late < 3 else pytest.raises(DecodeError, match=r"the remote draft failed: late$"):
            assert contestant.write(Mock(), Mock()).tokens == 2
    assert len(set(written)) == len(written) == len(backs) == n_written
    assert {draft.estimates.branches for draft in written} == {0}


# The judge of the policy


def case(machine: Machine, *, right: bool, n_texts: int = 2) -> Case:
    """Texts in which every prediction is right, or none is."""
    return Case("m/p", machine, (((9.0, right),),) * n_texts)


def judged(**changes: Run) -> Judged:
    first, later, fifth, short, long = (
        changes.get(name, GOOD) for name in ("first", "later", "fifth", "short", "long")
    )
    shorts = {n: long if n >= N_LONG else short for n in SHORT}
    texts = (first, later, later, later, fifth)
    return Judged("m/p", 0.1, None, texts, shorts, long, long, dict.fromkeys(WRONG, 1.0))


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ([0], [judged()] * 8 + [judged(first=Run("k=4", 0.9, 0.5))] * 2),
        ([1], [judged(first=Run("k=4", 0.95, 0.5))] * 3),
        ([2], [judged()] * 8 + [judged(fifth=Run("k=4", 0.96, 0.5))] * 2),
        ([3], [judged(fifth=Run("k=4", 0.98, 0.5))] * 3),
        ([4], [judged()] * 9 + [judged(first=Run(OFF, 0.94, 1.06))]),
        ([5], [judged()] * 9 + [judged(short=Run(OFF, 0.88, 1.12))]),
        ([6], [judged(later=Run(OFF, 0.98, 1.02))]),
        ([7], [replace(judged(), wrong=dict.fromkeys(WRONG, 1.0) | {"T(n) halved": 0.94})] * 2),
        ([14, 16], [judged()] * 8 + [judged(short=Run(OFF, 0.9, 1.1))] * 2),
        ([15, 17], [judged(short=Run("k=4", 0.84, 0.7, 1.5))]),
        ([18, 20, 22, 24], [judged()] * 8 + [judged(long=Run("k=4", 0.94, 0.5))] * 2),
        ([19, 21, 23, 25], [judged(long=Run("k=4", 0.98, 0.5))]),
        ([14, 16], [judged(first=Run("k=4", 1.0, 1.2), short=Run("k=4", 1.0, 1.2), later=Run("k=4", 1.0, 1.2))]),
    ],
)
def test_each_bar_is_about_its_own_texts(place: list[int], found: list[Judged]) -> None:
    assert [i for i, verdict in enumerate(verdicts(found, [1.0])) if verdict.passed is False] == place
    assert all(name in "\n".join(tables(found, [1.0, 0.9])) for name in ("m/p", "recorded", *WRONG, "advice"))


def test_the_oracle_is_the_best_fixed_setting() -> None:
    found = next(each for each in cases(0, ["shapes"]) if each.name == "shapes/stepped-apart")
    text = found.texts[0]
    oracle, runs = best(found, text, 64), dict(fixed(found, text, 64))
    assert list(runs) == [*(f"k={k}" for k in range(1, N_MAX + 1)), "sync", "async", "prepared"]
    assert oracle.rate == runs[oracle.setting].rate == max(run.rate for run in runs.values())
    assert oracle.late == max(late(run, 32) for run in runs.values())
    useless = case(MACHINE, right=False)
    assert best(useless, useless.texts[0], N_TOKENS).setting == OFF
    far = case(replace(MACHINE, latency_s=0.02), right=True)
    assert [name for name, _ in fixed(far, far.texts[0], 16)] == ["async"]


YES, NO = (9.0, True), (9.0, False)


@pytest.mark.parametrize(
    ("target_s", "draft_s", "more", "text", "settings", "ends"),
    [
        # The draft begins anew at the start of a verification, and so far ahead that a round trip costs nothing.
        (8.0, 1.0, {}, (YES, NO), (4, 0), [(1, 8.0), (2, 16.0), (4, 24.0), (6, 32.0)]),
        (8.0, 1.0, {"latency_s": 6.0}, (YES, NO), (4, 0), [(1, 8.0), (2, 16.0), (4, 24.0), (6, 32.0)]),
        (8.0, 1.0, {"latency_s": 14.0}, (YES, NO), (4, 1), [(2, 16.0), (4, 31.0), (6, 46.0)]),
        (5.0, 4.0, {}, (YES,), (1, 1), [(2, 9.0), (4, 14.0), (6, 19.0)]),
        (5.0, 4.0, {"aborts": False}, (YES,), (1, 1), [(2, 9.0), (4, 14.0), (6, 21.0)]),
        (8.0, 2.0, {}, (YES,), (3, 0), [(1, 8.0), (5, 16.0), (6, 24.0)]),  # the last token needs no candidate
    ],
)
def test_a_draft_that_is_told_what_comes_true(
    target_s: float, draft_s: float, more: Any, text: Any, settings: tuple[int, int], ends: list[tuple[int, float]]
) -> None:
    machine = Machine(flat := 5 * (target_s,), draft_s, flat, draft_s, **more)
    assert oracle.told(machine, text, *settings, n_tokens=6).ends == ends
    assert oracle.perfect(machine, text, 6) >= 6 / ends[-1][1]
    assert oracle.perfect(machine, (NO,), 6) == pytest.approx(1 / target_s)


@pytest.mark.parametrize("acceptance", [0.1, 0.95])
def test_a_synthetic_text_has_its_acceptance_and_the_confidences_and_runs_of_a_real_one(acceptance: float) -> None:
    text = tilted(texts("smollm2-f16"), acceptance, 8000, seed=1)
    share = mean(right for _, right in text)
    assert share == pytest.approx(acceptance, abs=0.02)
    assert mean(gap for gap, right in text if right) > 1.5 * mean(gap for gap, right in text if not right)
    assert mean(text[i][1] for i in range(1, len(text)) if text[i - 1][1]) > share
    assert Trace([(8.0, True), (8.0, True), (0.1, False), (8.0, True)] * 8, []).expected(3) == (3 + 7 * 4) / 8
