"""The scenarios of benchmarks/: tables, verdicts, clients and processes. Their figures themselves are not tested."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import page, servers
from benchmarks.contestants import Setup
from benchmarks.measure import Bar, Outcome, prompts_file
from benchmarks.scenarios import SCENARIOS
from duo.bench.contestant import Contestant
from duo.bench.prompts import parse_prompts
from duo.bench.results import Results
from tests.command import ROOT, environment
from tests.gguf_files import tiny_llama
from tests.serving import wait_until
from tests.unit.bench.samples import STORY, Silent, sample


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_table_has_what_was_measured_and_why_the_rest_is_blank() -> None:
    row = {
        "mode": "sync", "k": "4", "threads": "2/2", "tokens_per_s": 50.04, "tokens_per_s_lower_quartile": 49.0,
        "tokens_per_s_upper_quartile": 51.26, "speed_up": 1.25, "speed_up_low": None, "speed_up_high": None,
        "accept_rate": 0.754,
    }  # fmt: skip
    measured = {"call": "CPU only", "blank": None, "modes": ("sync",), "rows": [row]}
    blank = {"call": "split", "blank": "no GPU", "modes": ("plain", "auto"), "rows": []}
    found = cells(SCENARIOS["placement"].table([measured, blank]))  # type: ignore[attr-defined]
    assert found[0] == ["", "threads", "decode t/s", "speed-up", "accept %"]
    assert found[2:] == [
        ["CPU only: sync k=4", "2/2", "50.0 (49.0–51.3)", "1.25", "75"],
        ["split: plain (no GPU)", "", "", "", ""],
        ["split: auto (no GPU)", "", "", "", ""],
    ]


def test_a_bar_is_a_geometric_mean_with_an_interval() -> None:
    slow, fast, other = (Contestant(name, Silent()) for name in ("peer 1", "peer 2", "duo"))
    results = Results([slow, fast, other], fast)
    for i, (a, b, c) in enumerate(((5, 10, 10), (5, 10, 20), (5, 5, 45))):
        for contestant, rate in ((slow, a), (fast, b), (other, c)):
            results.add(sample(contestant, i, f"prompt {i}", rate, STORY, peak_bytes=100 * rate))
    over_fastest = Bar("duo", "peer", least=3).verdict(results)
    assert str(over_fastest).startswith("duo over peer 2: 2.621 (")
    assert str(over_fastest).endswith("; at least 3: MISSED")
    assert over_fastest.figure == pytest.approx((18 ** (1 / 3), 0.161, 42.7), rel=0.01)
    peak = Bar("duo", most=3000, figure=lambda run: run.peak_bytes, what="peak").verdict(results)
    assert str(peak).startswith("duo, peak: 2080.084 (")
    assert peak.passed
    assert Bar("duo", "nothing").verdict(results).passed is None


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    tiny = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02)
    (tmp_path / "prompt.txt").write_text("the cat sat on the mat\n", encoding="utf-8")
    duo = [sys.executable, "-m", "duo.cli.main"]
    with ExitStack() as stack:
        yield Setup("", tiny, tiny, [tmp_path / "prompt.txt"], 1, 16, duo, tmp_path, (), tmp_path, stack)


def test_prompts_reach_duo_bench_unchanged(setup: Setup, tmp_path: Path) -> None:
    texts = {"one": "A line.\nAnother one.\n", "two": "[not a category] \\ and é"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
    path = prompts_file(replace(setup, prompt_files=[tmp_path / f"{name}.txt" for name in texts]))
    found = parse_prompts(path.read_text(encoding="utf-8"))
    assert {prompt.category: prompt.text for prompt in found} == texts


def test_the_halves_of_a_streamed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tokens: one in each tenth of a second, and twice as fast after the fourth."""
    times = iter([0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6])
    events = [{"choices": [{"text": letter}], "duo": {"tokens": 1}} for letter in "abcdefgh"]
    monkeypatch.setattr(servers, "streamed", lambda url, request: iter([*events, {"choices": []}]))
    monkeypatch.setattr("benchmarks.servers.time.monotonic", lambda: next(times))
    called: list[int] = []
    run = servers.stream(type("Lead", (), {"url": ""})(), "a prompt", 8, lambda: called.append(1))
    assert (called, run.text, run.tokens) == ([1], "abcdefgh", 8)
    found = (run.first_half, run.second_half, run.tokens_per_s, run.longest_gap_s, run.first_token_s)
    assert found == pytest.approx((10, 20, 14, 0.1, 0.1))


def test_remote_drafts_connect_and_are_killed_midway(setup: Setup) -> None:
    outcome: Outcome = SCENARIOS["backs"].run(setup)
    rows = outcome.document["rows"]
    assert [row["mode"] for row in rows[:2]] == ["no back", "back from the start"]
    assert [row["runs"] for row in rows] == [1] * 4
    assert all(run["tokens"] >= 8 for run in outcome.document["runs"])


def test_a_lead_is_watched_while_it_writes(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.page.browser", lambda: nullcontext(None))
    outcome = SCENARIOS["page"].run(setup)
    assert [(row["mode"], row["runs"]) for row in outcome.document["rows"]] == [(page.WITHOUT, 1), (page.SUBSCRIBED, 1)]
    assert [verdict.passed is None for verdict in outcome.verdicts] == [True, False], "there was no page"


def test_a_subscription_checks_the_events(setup: Setup) -> None:
    lead = servers.lead(setup)
    with page.Subscription(lead) as watching:
        servers.stream(lead, "the cat", 8)
        wait_until(lambda: watching.counts["text"] == 2)
        assert (watching.counts["state"] > 0, watching.counts["progress"] > 0, watching.problem) == (True, True, None)
        lead.stop()
        wait_until(lambda: watching.problem)
    assert watching.problem == "the stream has ended"


def test_every_source_is_measured(setup: Setup) -> None:
    outcome = SCENARIOS["both"].run(setup)
    options = {name: " ".join(command) for name, command in outcome.document["commands"].items()}
    assert [("-md" in line, "--lookup off" in line) for line in options.values()] == [
        (False, True), (True, True), (False, False), (True, False),
    ]  # fmt: skip
    assert outcome.document["baseline"] == "duo, lookup off"
    assert [run["tokens"] for run in outcome.document["runs"]] == [setup.n_tokens] * 4


def test_a_scenario_with_programs_needs_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "peers", "--peers", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path} has no programs: build them with benchmarks/peers.sh\n"
