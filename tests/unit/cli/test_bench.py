"""`duo bench` on tiny models: what it measures, writes and refuses. Figures: tests/unit/bench."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from duo.cli.commands.bench import read_plan
from duo.cli.commands.options import BenchOptions
from tests.command import ONE_EACH, Run, models
from tests.gguf_files import tiny_llama
from tests.unit.cli.runner import duo

SHORT = ("-n", "4", "-r", "1", "--peers", "none", *ONE_EACH)


def document(run: Run) -> dict[str, Any]:
    assert run.status == 0, run.stderr
    return dict(json.loads(run.text))


def test_every_mode_is_measured_with_every_limit(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "large.gguf", seed=2, depth=0.02, chat_template="{{ messages[0].content }} a b")
    draft = tiny_llama(tmp_path / "small.gguf", seed=2, depth=0.02)
    more = ("--draft", "2,auto", "--exact", "--categories", "code,JSON", "-r", "2", "-o", "json")
    found = document(duo("bench", *models(target, draft), *SHORT, *more))
    drafting = [(mode, k) for mode in ("sync", "async", "auto") for k in ("2", "auto")]
    assert [(row["mode"], row["k"]) for row in found["rows"]] == [("plain", None), *drafting]
    assert {row["same_text"] for row in found["rows"][1:]} == {True}, "with --exact"
    assert {row["threads"] for row in found["rows"]} == {"1", "1/1", "1+1", "1/1 or 1+1"}
    assert {run["tokens"] for run in found["runs"]} == {4}
    assert all(run["tokens_per_s"] and run["first_token_s"] for run in found["runs"])
    plain, sync = found["rows"][:2]
    assert plain["verified"] is plain["hidden"] is plain["draft_ms_per_token"] is None
    assert sync["hidden"] == 0, "nothing is, sequentially"
    assert {"duo", "llama-cpp-python", "python"} <= set(found["versions"])
    target, draft = found["models"]["target"], found["models"]["draft"]
    assert (target["name"], draft["quantisation"]) == ("large.gguf", "F32")
    assert (found["options"]["predict"], found["options"]["draft"], found["complete"]) == (4, "2,auto", True)


@pytest.mark.parametrize(("n_others", "is_said"), [(0.0, False), (50.0, True)])
def test_it_says_how_long_it_takes_and_that_the_machine_is_busy(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, n_others: float, is_said: bool
) -> None:
    monkeypatch.setattr("duo.cli.commands.bench.other_cpu_use", lambda _: n_others)
    run = duo("bench", "-m", tiny, *SHORT, "--modes", "off,lookup", "--categories", "code", "-r", "3")
    assert run.status == 0, run.stderr
    assert ("duo: other programs use 50.0 of " in run.stderr) == is_said
    assert re.search(r"^duo: rounds: 3, each of \d+ contestants", run.stderr, re.MULTILINE)
    assert len(re.findall(r"^duo: about \d+ s more, after one of 3 rounds$", run.stderr, re.MULTILINE)) == 1


def test_one_model_is_measured_plain_and_with_lookup(tiny: Path) -> None:
    run = duo("bench", "-m", tiny, *SHORT, "--peers", f"llama-speculative-simple={sys.executable}", "-o", "json")
    assert [row["mode"] for row in document(run)["rows"]] == ["plain", "lookup"]
    (warning,) = run.warnings
    assert warning.endswith("llama-speculative-simple needs a draft with the target's vocabulary: skipped")


def test_models_that_cannot_roll_back_are_measured_without_a_draft(recurrent: Path) -> None:
    run = duo("bench", *models(recurrent, recurrent), *SHORT, "-o", "json")
    assert [row["mode"] for row in document(run)["rows"]] == ["plain"]
    assert any("cannot roll back" in line for line in run.warnings)


@pytest.mark.parametrize(("limits", "largest"), [("64,auto", 64), ("4,auto", 16), ("auto", None), ("2,8", 8)])
def test_the_contexts_have_room_for_the_most_candidates(limits: str, largest: int | None) -> None:
    assert read_plan(BenchOptions(limits=limits, peers="none")).largest == largest


def test_the_rates_are_drawn_as_bars_below_the_table(tiny: Path) -> None:
    run = duo("bench", "-m", tiny, *SHORT)
    table, bars = run.text.rstrip().split("\n| ------ |")[1].split("\n" + " " * 80 + "\n")
    drawn = [
        re.fullmatch(r"    (\w+) +([█▉▊▋▌▍▎▏]+) +([\d.]+) t/s( +[\d.]+ of plain)? *", bar) for bar in bars.splitlines()
    ]
    assert [bar and bar[1] for bar in drawn] == ["plain", "lookup"]
    rates = {bar[1]: float(bar[3]) for bar in drawn if bar}
    lengths = {bar[1]: len(bar[2]) for bar in drawn if bar}
    assert all(f" {rate:.1f} |" in table for rate in rates.values())
    assert max(lengths, key=lengths.__getitem__) == max(rates, key=rates.__getitem__) or len({*lengths.values()}) == 1
    assert [bool(bar and bar[4]) for bar in drawn] == [False, True]


def test_the_table_names_the_target_first_and_json_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    target, draft = tiny_llama(tmp_path / "z.gguf", n_layer=4), tiny_llama(tmp_path / "a.gguf")
    report = tmp_path / "out.json"
    run = duo("bench", *models(target, draft), *SHORT, "--json", report)
    assert run.text.startswith("z.gguf (F32), draft a.gguf (F32); 4 greedy tokens each")
    assert "{" not in run.text
    assert json.loads(report.read_text())["complete"]
    assert document(duo("bench", *models(target, draft), *SHORT, "--json", "-"))["complete"], "and nothing else"
