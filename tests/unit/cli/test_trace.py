"""`duo trace`: from a recorded run to a table, a line of advice and a plot."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from duo.cli.commands.trace import advise
from duo.diagnose.shares import Share, Shares
from duo.diagnose.trace import TraceFile, read_trace
from duo.engine.metrics import Event, Metrics, Resolution, StepRecord
from duo.spec.schedule import Schedule
from tests.command import ONE_EACH, assert_refused
from tests.unit.cli.runner import duo


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefill of 0.5 s and ten steps of 0.1 s, in which two candidates are drafted and one is accepted."""
    path = tmp_path_factory.mktemp("trace") / "a$\\b$.json"  # no formula to matplotlib
    metrics = Metrics(started=0.0)
    with mock.patch("time.perf_counter", return_value=0.0):
        trace = TraceFile(path, metrics, {"target": "target.gguf"})
    metrics.events.append(Event("target", "prompt", 0.0, 0.5, 9))
    metrics.steps.append(StepRecord(0.5, 0.5, 0, 0, 1, Schedule.ASYNC))
    for i in range(10):
        at = 0.5 + i / 10
        metrics.events += [
            Event("target", "wait", at, at + 0.02, 0),
            Event("target", "decode", at + 0.02, at + 0.09, 3),
        ]
        metrics.draft_events += [Event("draft", "draft", at + 0.01 + j / 50, at + 0.03 + j / 50, 1) for j in range(2)]
        metrics.steps.append(StepRecord(at + 0.09, at + 0.1, 2, 1, 2, Schedule.ASYNC))
    trace.close()
    return path


def test_the_table(recorded: Path) -> None:
    run = duo("trace", recorded)
    assert (run.status, run.stderr) == (0, "")
    assert [re.sub(r" +", " ", line).strip() for line in run.text.splitlines()] == [
        "from 0.500 to 1.500 s",
        "",
        "lane what times seconds share ms each",
        "target decode 10 0.700 70.0 % 70.00",
        "wait 10 0.200 20.0 % 20.00",
        "commit 10 0.100 10.0 % 10.00",
        "idle 0.000 0.0 %",
        "draft draft 20 0.400 40.0 % 20.00",
        "idle 0.600 60.0 %",
        "",
        "tokens 20, 20.0 tokens/s (20 async)",
        "overlap 30.0 % of the time, both models computed",
        "hidden 75.0 % of the draft's time was concurrent with the target",
        "waste 50.0 % of 20 drafted tokens were not accepted",
        "accepted 50.0 % of 20 verified tokens",
        "",
        "The target waits 20% of the time: use a faster draft, or more threads for it.",
    ]


def test_the_branches_of_a_draft(recorded: Path, tmp_path: Path) -> None:
    path, metrics = tmp_path / "branches.json", Metrics(started=0.0)
    with mock.patch("time.perf_counter", return_value=0.0):
        trace = TraceFile(path, metrics, {})
    metrics.decoded(0.0, 1.0, 1)
    metrics.steps.append(StepRecord(1.0, 1.0, 0, 0, 1, Schedule.ASYNC))
    metrics.drafted(0.5, 0.75, 1)
    metrics.prepared(0.5, 0.75, 4, 3)
    metrics.resolutions += [Resolution(0.6, 0, hit=True), Resolution(0.7, 2, hit=True), Resolution(0.9, 2, hit=False)]
    trace.close()
    run = duo("trace", path, "--from", "0")
    assert "branches  3 outcomes prepared, hit rate 66.7 % of 3 contradictions" in run.text.splitlines()
    assert re.search(r"^branches +branch +1 +0.250 +25.0 % +250.00", run.text, re.MULTILINE)
    assert "branches" not in duo("trace", recorded).text


def test_a_part_of_the_time(recorded: Path) -> None:
    run = duo("trace", recorded, "--from", "0", "--to", "0.7")
    assert run.text.startswith("from 0.000 to 0.700 s\n")
    assert re.search(r"^target +prompt +1 +0.500", run.text, re.MULTILINE)
    assert duo("trace", recorded, "--to", "1e6").text == duo("trace", recorded).text, "beyond the end is the end"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "-1"), "--from must be a time in seconds"),
        (("--to", "nan"), "--to must be a time in seconds"),
        (("--from", "inf"), "--from must be a time in seconds"),
        (("--from", "1000"), "no events from 1000"),
        (("--from", "1", "--to", "0.5"), "no events from 1 to 0.5 s"),
        (("--plot", "picture.docx"), "must end in .svg or .png"),
        (("--plot", "nowhere/picture.svg"), "--plot nowhere/picture.svg: No such file"),
    ],
)
def test_usage_errors(recorded: Path, options: tuple[str, ...], said: str) -> None:
    assert_refused(duo("trace", recorded, *options), said, status=2)


def test_a_plot(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "lanes.svg"
    run = duo("trace", recorded, "--plot", picture)
    assert (run.status, run.text) == (0, duo("trace", recorded).text)
    assert run.stderr == f"duo: plotted 0.50 to 1.50 s in {picture}\n"
    assert "<svg" in picture.read_text()


def test_a_plot_without_matplotlib(recorded: Path, tmp_path: Path) -> None:
    with mock.patch.dict("sys.modules", {"matplotlib": None, "matplotlib.figure": None}):
        run = duo("trace", recorded, "--plot", tmp_path / "lanes.svg")
        assert_refused(run, "plots need matplotlib: pip install matplotlib", status=2)
        assert duo("trace", recorded).status == 0


def test_a_file_that_is_no_trace(recorded: Path, tmp_path: Path) -> None:
    text, forged = tmp_path / "text", tmp_path / "forged.json"
    text.write_text("no trace at all")
    forged.write_text(recorded.read_text().replace('"decode"', r'"\u001b]0;owned\u0007"'))
    assert_refused(duo("trace", text), f"{text} is not a trace")
    assert_refused(duo("trace", forged), "is not a trace written by duo")
    assert_refused(duo("trace", tmp_path / "none"), "No such file or directory")
    assert_refused(duo("trace", tmp_path), "Is a directory")


def test_a_truncated_trace(recorded: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    data = recorded.read_bytes()
    cut.write_bytes(data[: data.index(b'"', len(data) // 2)])
    run = duo("trace", cut)
    assert run.status == 0
    assert run.stderr == f"duo: warning: {cut} is truncated: only its complete events are used\n"


def test_traces_of_runs_without_a_draft(tiny: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    for n in (0, 1, 20):
        assert duo("-m", tiny, "-p", "x", "-n", str(n), "--ignore-eos", "-t", "1", "--trace", trace).status == 0
        read = duo("trace", trace)
        if n == 0:
            assert_refused(read, "no events in this trace")
        else:
            assert read.text.splitlines()[-1].startswith("No tokens were drafted")
            assert f"tokens    {max(1, n - 1)}," in read.text


def _shares(**figures: float) -> Shares:
    """Ten seconds, with a good draft concurrent with the target unless said otherwise."""
    found = Shares(0.0, 10.0, [Share("target", "wait", 9, 10 * figures.get("waits", 0.0))])
    found.target_s, found.draft_s = 10 * figures.get("target", 0.95), 10 * figures.get("draft", 0.9)
    found.n_drafted, found.n_verified, found.n_accepted = 100, 100, int(100 * figures.get("accepted", 0.8))
    found.n_judged = int(figures.get("judged", 100))
    return found


@pytest.mark.parametrize(
    ("figures", "schedule", "advice"),
    [
        ({}, "async", "only a better draft or a faster target"),
        ({"waits": 0.3, "target": 0.6}, "async", "waits 30% of the time"),
        ({"accepted": 0.3}, "async", "Most candidates are rejected"),
        ({"accepted": 0.3, "judged": 40}, "async", "only a better draft"),
        ({"draft": 0.4}, "async", "The draft is idle 60% of the time"),
        ({"draft": 0.3, "target": 0.7}, "sync", "the draft's 30% would be free"),
        ({}, "off", "target alone was faster"),
        ({"target": 0.7}, "async", "computes 70% of the time"),
    ],
)
def test_the_advice_follows_from_the_figures(figures: dict[str, float], schedule: str, advice: str) -> None:
    found = _shares(**figures)
    found.tokens_by_schedule = Counter({schedule: 150, "async": 40})
    assert advice in advise(found)


@pytest.mark.parametrize(
    ("facts", "schedule", "advice"),
    [
        ({"apart": False, "slowdown": 1.6}, "async", "share the cores: the target's decodes take 1.6 times as long"),
        ({"apart": None, "slowdown": 1.6}, "async", "seems to share the target's hardware: the target's decodes take"),
        ({"apart": False, "cores": 2}, "async", "Both models share 2 cores, and no decode of the target alone"),
        ({"apart": False, "slowdown": 1.1}, "async", "only a better draft"),
        ({"apart": None}, "async", "only a better draft"),
        ({"apart": True, "slowdown": 1.6}, "async", "only a better draft"),
        ({"apart": False, "slowdown": 1.6}, "sync", "run sequentially"),
    ],
)
def test_models_that_share_cores(facts: dict[str, object], schedule: str, advice: str) -> None:
    found = _shares()
    found.tokens_by_schedule = Counter({schedule: 150, "off": 40})
    for name, value in facts.items():
        setattr(found, name, value)
    assert advice in advise(found)
    if "hare" in advice:
        assert "try --schedule sync, --schedule off or a smaller draft (duo suggest)" in advise(found)


def test_a_run_records_whether_its_models_share_cores(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run = duo("-m", tiny, "-md", tiny, "-p", "x", "-n", "9", "--ignore-eos", *ONE_EACH, "--trace", path)
    assert run.status == 0
    about = read_trace(path).about
    assert (about["apart"], about["threads"]["beside"], about["schedule"]) == (False, [1, 1], "auto")
    assert about["cores"] >= 1
    assert duo("-m", tiny, "-p", "x", "-n", "9", "--ignore-eos", *ONE_EACH, "--trace", path).status == 0
    assert read_trace(path).about["apart"] is None
