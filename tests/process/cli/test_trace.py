"""`duo trace`: from a run to a table, a line of advice and a picture."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from duo.cli.commands.trace import advise
from duo.diagnose.shares import Share, Shares
from tests.command import ONE_EACH, SLOW_TARGET, Run, assert_refused, command, duo, environment, models


@pytest.fixture(scope="module")
def recorded(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A run of 48 tokens: its trace and its statistics."""
    folder = tmp_path_factory.mktemp("trace")
    trace, report = folder / "trace.json", folder / "run.json"
    options = ("-n", "48", "--draft", "4", "--schedule", "async", "--ignore-eos", *ONE_EACH)
    prompt = ("-p", "The capital of France is")
    run = duo(*models(*demo_pair), *prompt, *options, "--trace", trace, "--json", report, before=SLOW_TARGET)
    assert run.status == 0, run.stderr
    return trace, json.loads(report.read_text())


def _row(run: Run, lane: str, name: str) -> list[float]:
    """Times, seconds and share in a row of the table."""
    here = ""
    for line in run.text.splitlines():
        here = line[:16].strip() or here
        if here == lane and line[16:26].strip() == name:
            return [float(number) for number in re.findall(r"[\d.]+", line[26:])]
    raise AssertionError(run.text)


def _lane(run: Run, lane: str) -> list[str]:
    """The rows of a lane."""
    found, here = [], ""
    for line in run.text.partition("\n\ntokens")[0].splitlines()[3:]:
        here = line[:16].strip() or here
        if here == lane:
            found.append(line)
    return found


def test_the_figures_are_those_of_the_run(recorded: tuple[Path, dict[str, dict[str, float]]]) -> None:
    trace, report = recorded
    run = duo("trace", trace)
    assert (run.status, run.stderr) == (0, "")
    generation, draft = report["generation"], report["draft"]
    times, seconds, share, each = _row(run, "target", "decode")
    start, end = map(float, re.findall(r"[\d.]+", run.text.splitlines()[0]))
    assert times == generation["decodes"]
    assert each == pytest.approx(generation["target_ms_per_decode"], abs=0.01)
    assert share == pytest.approx(100 * seconds / (end - start), abs=0.1), "what is shown is rounded"
    assert end - start == pytest.approx(generation["seconds"], rel=0.25), "the draft's last decode ends after the text"
    assert f"accepted  {100 * draft['accept_rate']:.1f} % of {draft['verified']} verified tokens" in run.text
    tokens = re.search(r"^tokens    47, ([\d.]+) a second \(47 async\)$", run.text, re.MULTILINE)
    assert tokens, "the first is the prompt's"
    assert float(tokens[1]) == pytest.approx(generation["tokens_per_s"], rel=0.25)
    assert re.search(r"^overlap   [\d.]+ % of the time both models computed$", run.text, re.MULTILINE)
    assert re.search(r"^waste     [\d.]+ % of \d+ drafted tokens were of no use$", run.text, re.MULTILINE)
    for lane in ("target", "draft"):
        names = [line[16:26].strip() for line in run.text.splitlines()]
        shares = [float(found) for line in _lane(run, lane) for found in re.findall(r"([\d.]+) %", line)]
        assert "idle" in names
        assert sum(shares) == pytest.approx(100, abs=0.5), "what is shown is rounded"
    assert run.text.splitlines()[-1].endswith(".")


def test_a_part_of_the_time(recorded: tuple[Path, dict[str, dict[str, float]]]) -> None:
    trace, _ = recorded
    run = duo("trace", trace, "--from", "0", "--to", "0.5")
    assert run.text.startswith("from 0.000 to 0.500 s\n")
    assert _row(run, "target", "prompt")[0] == 1
    everything = duo("trace", trace, "--to", "1e6").text.splitlines()[0]
    assert everything == duo("trace", trace).text.splitlines()[0], "more than there is, is all"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "-1"), "--from takes seconds"),
        (("--to", "nan"), "--to takes seconds"),
        (("--from", "inf"), "--from takes seconds"),
        (("--from", "1000"), "nothing is left from 1000"),
        (("--from", "1", "--to", "0.5"), "nothing is left from 1 to 0.5 s"),
        (("--plot", "picture.docx"), "has to end in .svg or .png"),
        (("--plot", "nowhere/picture.svg"), "--plot nowhere/picture.svg: No such file"),
    ],
)
def test_what_cannot_be_meant(
    recorded: tuple[Path, dict[str, dict[str, float]]], options: tuple[str, ...], said: str
) -> None:
    assert_refused(duo("trace", recorded[0], *options), said, status=2)


def test_a_picture(recorded: tuple[Path, dict[str, dict[str, float]]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "lanes.svg"
    run = duo("trace", recorded[0], "--plot", picture)
    assert (run.status, run.text) == (0, duo("trace", recorded[0]).text)
    assert re.fullmatch(rf"duo: [\d.]+ to [\d.]+ s are drawn in {picture}\n", run.stderr)
    assert "<svg" in picture.read_text()


def test_a_picture_without_matplotlib(recorded: tuple[Path, dict[str, dict[str, float]]], tmp_path: Path) -> None:
    gone = "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None"
    run = duo("trace", recorded[0], "--plot", tmp_path / "lanes.svg", before=gone)
    assert run.status == 2
    assert run.stderr == "duo: error: plots need matplotlib: pip install matplotlib\n"
    assert duo("trace", recorded[0], before=gone).status == 0, "who does not draw does not need it"


def test_what_is_no_trace(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no trace at all")
    assert_refused(duo("trace", text), f"{text} is no trace")
    assert_refused(duo("trace", tmp_path / "none"), "No such file or directory")
    assert_refused(duo("trace", tmp_path), "Is a directory")
    assert_refused(duo("trace"), "Missing argument 'FILE'", status=2)


def test_names_cannot_drive_a_terminal(recorded: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    forged = tmp_path / "forged.json"
    forged.write_text(recorded[0].read_text().replace('"decode"', r'"\u001b]0;owned\u0007"'))
    assert_refused(duo("trace", forged), "is no trace of duo's")


def test_a_name_that_is_a_formula_is_drawn(recorded: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    trace = tmp_path / "a$\\b$.json"
    trace.write_bytes(recorded[0].read_bytes())
    assert duo("trace", trace, "--plot", tmp_path / "out.svg").status == 0


def test_one_file_cannot_hold_both(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert_refused(duo("-m", tiny, "-p", "x", "--json", file, "--trace", file), "each a file of its own", status=2)


def test_a_run_without_tokens(tiny: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert duo("-m", tiny, "-p", "x", "-n", "0", "-t", "1", "--trace", trace).status == 0
    assert_refused(duo("trace", trace), "nothing happened in this run")


def test_a_run_without_a_draft(tiny: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    for n in ("1", "20"):
        run = duo("-m", tiny, "-p", "x", "-n", n, "-t", "1", "--trace", trace)
        read = duo("trace", trace)
        assert read.status == 0
        assert read.text.splitlines()[-1].startswith("No draft took part")
        assert f"tokens    {max(1, run.n_tokens - 1)}," in read.text


def test_a_run_that_was_killed(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    endless = ("-p", "Count: 1 2 3", "-n", "-1", "--ignore-eos", *ONE_EACH, "--trace", trace)
    process = subprocess.Popen(
        command(*models(*demo_pair), *endless), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not trace.exists() or trace.read_bytes().count(b'"commit"') < 10:
            assert process.poll() is None
            time.sleep(0.05)
        while_it_runs = duo("trace", trace)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert while_it_runs.status == 0
    json.loads(trace.read_text() + "]")
    run = duo("trace", trace)
    assert (run.status, run.stderr) == (0, "")
    data = trace.read_bytes()
    trace.write_bytes(data[: data.index(b'"', len(data) // 2)])  # in the middle of a line, too
    run = duo("trace", trace)
    assert run.status == 0
    assert run.stderr == f"duo: warning: {trace} ends in the middle: this is what there is\n"


def _shares(**figures: float) -> Shares:
    """Ten seconds, with a good draft beside the target unless said otherwise."""
    found = Shares(0.0, 10.0, [Share("target", "wait", 9, 10 * figures.get("waits", 0.0))])
    found.target_s, found.draft_s = 10 * figures.get("target", 0.95), 10 * figures.get("draft", 0.9)
    found.n_drafted, found.n_verified, found.n_accepted = 100, 100, int(100 * figures.get("accepted", 0.8))
    found.n_judged = int(figures.get("judged", 100))
    found.tokens_by_schedule = Counter({"async": 180})
    return found


@pytest.mark.parametrize(
    ("figures", "schedule", "advice"),
    [
        ({}, "async", "only better guesses, or a faster target"),
        ({"waits": 0.3, "target": 0.6}, "async", "waits 30% of the time"),
        ({"accepted": 0.3}, "async", "Most guesses are wrong"),
        ({"accepted": 0.3, "judged": 40}, "async", "only better guesses"),
        ({"draft": 0.4}, "async", "The draft rests 60% of the time"),
        ({"draft": 0.3, "target": 0.7}, "sync", "the draft's 30% would cost no time"),
        ({}, "off", "faster alone"),
        ({"target": 0.7}, "async", "computes 70% of the time"),
    ],
)
def test_the_advice_follows_from_the_figures(figures: dict[str, float], schedule: str, advice: str) -> None:
    found = _shares(**figures)
    found.tokens_by_schedule = Counter({schedule: 150, "async": 40})
    assert advice in advise(found)
