"""`duo plan`: predictions from files and the statistics of a run; tests/golden/transcript.txt has others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from duo.cli.commands.options import PlanOptions
from duo.cli.commands.plan import plan
from duo.diagnose.prospects import foretell, informed
from duo.errors import UsageError
from duo.speculation.machine import Machine
from duo.speculation.modes import Schedule
from tests.command import ONE_EACH, ROOT, Argument, assert_refused
from tests.unit.cli.runner import duo

SIZES = "1:490,2:495,4:520,5:540,8:650"
REST = ("--draft-ms", "25", "--accept", "0.8")

# All that is read of a run's statistics.
POLICY: dict[str, Any] = {
    "curve_ms": {"alone": [10.0, 11.0, 12.0], "concurrent": [12.0, 12.0, 12.0]},
    "draft_ms": {"alone": 2.0, "concurrent": 3.0},
    "acceptance": 0.5,
}


def predict(*arguments: Argument) -> dict[str, float]:
    """The rate in each row of the table."""
    run = duo("plan", *arguments)
    assert (run.status, run.stderr.count("\n")) == (0, 1), run.stderr
    return {line.split()[0]: float(line.split()[1]) for line in run.text.splitlines()[:-1]}


def statistics(tmp_path: Path, **figures: Any) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"policy": POLICY | figures}))
    return path


def test_forms_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "times"
    said = duo("plan", "--target-ms", SIZES, *REST).stderr
    for content in (
        "n,ms\n1,490\n2,495\n4,520\n5,540\n8,650\n",
        "# measured\n\n8, 650\n5, 540\n4, 520\n2, 495\n1, 490",
        "tokens\tms\n1\t490.0\n2\t495\n4\t520\n5\t540\n8\t6.5e2\n",
    ):
        path.write_text(content)
        assert duo("plan", "--table", path, *REST).stderr == said


def test_the_documents_show_what_the_command_prints() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    tables = [(text, found) for text in texts for found in re.finditer(r"```text\n(plain .+?)```", text, re.DOTALL)]
    assert tables
    for text, shown in tables:
        command = re.findall(r"^    duo (plan [^#\n]+)", text[: shown.start()], re.MULTILINE)[-1]
        assert duo(*command.split()).text == shown[1]


def test_a_machine_file_has_all_times(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    pair = {"target_ms": {"1": 25, "2": 26, "4": 29, "8": 38}, "draft_ms": {"1": 8, "9": 9.6}, "apart": True}
    path.write_text(json.dumps({"name": "a card", "pairs": {"a": pair | {"assumed": ["draft_ms"]}, "b": pair}}))
    run = duo("plan", "--machine", f"{path}:a", "--accept", "0.8")
    assert run.stderr.startswith("assumed, not measured: draft_ms\n")
    assert (
        run.text == duo("plan", "--target-ms", "1:25,2:26,4:29,8:38", "--draft-ms", "1:8,9:9.6", "--accept", "0.8").text
    )
    assert_refused(duo("plan", "--machine", path, "--accept", "0.8"), "the name of a pair", status=2)


def test_the_experts_of_a_run_s_models_are_said(tmp_path: Path) -> None:
    path = statistics(tmp_path)
    mixture = {"name": "a.gguf", "expert_bytes": 17_000_000_000, "expert_bytes_on_cpu": 2_500_000_000}
    dense = mixture | {"expert_bytes": 0, "expert_bytes_on_cpu": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"models": {"target": mixture, "draft": dense}}))
    said = duo("plan", "--json", path).stderr
    assert "; target with 17.0 GB of experts, 2.5 GB of them on the CPU; " in said
    assert "draft with" not in said


# A draft on another machine


@pytest.mark.parametrize("of_a_run", [False, True])
def test_the_round_trip_given_wins_over_the_known_one(of_a_run: bool, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    pair = {"target_ms": {"1": 25, "8": 38}, "draft_ms": 8, "apart": True, "delay_ms": 10}
    path.write_text(json.dumps({"name": "two", "pairs": {"a": pair}}))
    known: tuple[Argument, ...] = ("--machine", path, "--accept", "0.8")
    if of_a_run:
        known = ("--json", statistics(tmp_path, latency_ms=20.0))
    without, same = predict(*known, "--latency-ms", "0"), predict(*known, "--latency-ms", "20")
    assert predict(*known) == same
    assert without["concurrent"] > same["concurrent"]
    assert "sequential" in without
    assert "sequential" not in same, "a remote draft does not take turns"
    assert "; round trip 20 ms; " in duo("plan", *known).stderr
    assert "; round trip 5 ms; " in duo("plan", *known, "--latency-ms", "5").stderr
    assert "round trip" not in duo("plan", *known, "--latency-ms", "0").stderr
    alone = "a block draft cannot be on another machine: remove --block, or add --latency-ms 0"
    assert_refused(duo("plan", *known, "--block", "4"), alone, status=2)


def test_a_remote_draft_is_not_advised_to_take_turns() -> None:
    machine = Machine([0.1] * 17, 0.01, [9.0] * 17, 0.9, latency_s=0.01)
    slow = foretell(informed(machine, 0.9, 16), constant=True, prepares=False)
    assert slow.found[Schedule.SYNC].rate > slow.rates[Schedule.OFF], "in turns it would pay"
    assert slow.best is Schedule.OFF
    assert Schedule.SYNC not in slow.rates


def test_times_in_several_sequences_are_shown() -> None:
    several = duo("plan", "--target-ms", "303", "--draft-ms", "1:62,2:70,4:85,8:120", "--accept", "0.8").stderr
    assert "; draft 62 ms per token, 80.6 ms for two in one sequence (assumed), 62, 70, 85, 93.75, 120 ms " in several


# The statistics of a run


def test_branches_of_a_run(tmp_path: Path) -> None:
    figures = {"draft_ms_by_sequences": [3.0 + 0.01 * n for n in range(9)], "ranks": [0.9, 0.05, 0.01]}
    rates = predict("--json", statistics(tmp_path, **figures))
    few = predict("--json", statistics(tmp_path, **{**figures, "ranks": [0.1, 0.05, 0.01]}))
    assert rates["prepared"] > few["prepared"] >= rates["concurrent"]


def test_the_statistics_of_a_real_run(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    settings = ["--ignore-eos", "--schedule", "sync", "--lookup", "off", "--draft", "3"]
    options: tuple[Argument, ...] = ("-p", "the cat", *settings, *ONE_EACH, "--json", path)
    assert duo("-m", tiny, "-md", tiny, *options, "-n", "60").status == 0
    curve = json.loads(path.read_text())["policy"]["curve_ms"]["alone"]
    assert predict("--json", path)["plain"] == pytest.approx(1000 / curve[0], rel=0.01)
    duo("-m", tiny, "-md", tiny, *options, "-n", "1")
    assert_refused(duo("plan", "--json", path), "a run with a draft that was long enough", status=2)
    duo("-m", tiny, *options[:-2], "-n", "40", "--lookup", "auto", "--json", path)
    assert_refused(duo("plan", "--json", path), "not the statistics of a run with a draft", status=2)


def test_damaged_statistics(tmp_path: Path) -> None:
    damages: list[dict[str, Any]] = [
        {"draft_ms": {"alone": 2.0, "concurrent": 0}}, {"draft_ms": {"alone": 2.0}}, {"acceptance": 1.5},
        {"curve_ms": {"alone": [], "concurrent": []}}, {"curve_ms": {"alone": [-1.0], "concurrent": [1.0]}},
        {"curve_ms": None}, {"pair_ms": 0.0}, {"measured": {"alone": ["x"], "concurrent": []}}, {"ranks": ["x"]},
        {"draft_ms_by_sequences": [0.0]}, {"draft_ms": {"alone": 10.0, "concurrent": 1e-320}},
    ]  # fmt: skip
    for figures in damages:
        with pytest.raises(UsageError):
            plan(PlanOptions(stats=statistics(tmp_path, **figures)))
    path = tmp_path / "run.json"
    for content in (b"{", b"{}", b'{"policy": 7}', b"\xff\xfe\0"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="not the statistics of a run"):
            plan(PlanOptions(stats=path))


def test_invalid_tables_and_times(tmp_path: Path) -> None:
    path = tmp_path / "times"
    for content in (b"", b"1\n", b"1 x\n", b"2 490\n", b"1 0\n", b"0 5\n1 4\n", b"\xff\xfe\0 1\n"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"--table {path} must have"):
            plan(PlanOptions(table=path, draft_ms="25", accept=0.8))
    for text in ("x", "-1", "nan", "2:490", "1:490,2:x", "1:490,0:3", ",", "1e308", f"1{'0' * 400}:5"):
        with pytest.raises(UsageError, match="--target-ms must have the form 490 or 1:490,2:495,8:650, with a time"):
            plan(PlanOptions(target_ms=text, draft_ms="25", accept=0.8))
    for text in ("1:303,1:5", "490,500", "1:303,8:5,8:6"):
        with pytest.raises(UsageError, match="--target-ms has two times for one size"):
            plan(PlanOptions(target_ms=text, draft_ms="25", accept=0.8))
    with pytest.raises(UsageError, match=r"--draft-ms must have the form 490 or 1:490,2:495,8:650$"):
        plan(PlanOptions(target_ms="303", draft_ms="0:3", accept=0.8, block=8))


def test_a_block_draft_makes_all_candidates_in_one_decode_and_takes_turns() -> None:
    times = ("--target-ms", "1:50,8:64", "--draft-ms", "1:5,7:5", "--accept", "0.8", "--draft", "7")
    rows = predict(*times, "--block", "7")
    assert rows["sequential"] == pytest.approx(1000 * sum(0.8**i for i in range(8)) / (5 + 64), rel=1e-3)
    assert "concurrent" not in rows
    assert predict(*times)["sequential"] < rows["sequential"]


def test_the_time_of_a_block_is_sufficient() -> None:
    rest = ("--target-ms", "50", "--accept", "0.8", "--block", "8")
    assert predict("--draft-ms", "8:3", *rest) == predict("--draft-ms", "1:3,8:3", *rest)
    assert "; draft 3 ms for a block of 8; " in duo("plan", "--draft-ms", "8:3", *rest).stderr
    assert "; draft 5.7 ms for a block of 8 (assumed); " in duo("plan", "--draft-ms", "3", *rest).stderr


def test_the_limit_of_a_block_draft_is_that_of_all_its_candidates() -> None:
    rest = ("--target-ms", "40", "--accept", "0.9", "--block", "8")
    assert predict(*rest, "--draft-ms", "8:25")["limit"] == pytest.approx(25 * sum(0.9**i for i in range(9)), rel=1e-3)
    assert predict(*rest, "--draft-ms", "8:75", "--draft", "8")["limit"] == pytest.approx(9 / 0.075, rel=1e-3)
