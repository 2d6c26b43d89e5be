"""`duo bench` on tiny models: what it measures, writes and refuses. Formats and figures: tests/unit/bench."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duo.cli.options.bench import BenchOptions
from duo.cli.options.bench_plan import read_plan
from tests.command import ONE_EACH, ROOT, Run, assert_refused, models
from tests.gguf_files import tiny_llama
from tests.unit.cli.runner import duo

FAR = ROOT / "benchmarks/machines/m2-m1.json"
SHORT = ("-n", "4", "-r", "1", "--peers", "none", *ONE_EACH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Run:
    """All modes but remote, each with two limits, on two categories, as JSON and as a picture."""
    pytest.importorskip("matplotlib")
    target = tiny_llama(folder / "large.gguf", seed=2, depth=0.02, chat_template="{{ messages[0].content }} a b")
    draft = tiny_llama(folder / "small.gguf", seed=2, depth=0.02)
    more = ("--modes", "plain,sync,async,auto", "--draft", "2,auto", "--exact", "--plot", folder / "out.svg")
    categories = ("--categories", "code,JSON", "-r", "2")
    return duo("bench", *models(target, draft), *SHORT, *categories, *more, "-o", "json")


@pytest.fixture(scope="module")
def document(measured: Run) -> dict[str, Any]:
    assert measured.status == 0, measured.stderr
    return dict(json.loads(measured.text))


def test_every_mode_is_measured_with_every_limit(document: dict[str, Any]) -> None:
    drafting = [(mode, k) for mode in ("sync", "async", "auto") for k in ("2", "auto")]
    assert [(row["mode"], row["k"]) for row in document["rows"]] == [("plain", None), *drafting]
    assert {row["same_text"] for row in document["rows"][1:]} == {True}, "with --exact"
    assert {row["threads"] for row in document["rows"]} == {"1", "1/1", "1+1", "1/1 or 1+1"}
    by_category = [row["category"] for row in document["rows_by_category"]]
    assert by_category == ["code", "JSON"] * 7


def test_each_round_has_a_run_of_each_contestant(document: dict[str, Any]) -> None:
    runs = [(run["round"], run["category"], run["tokens"], bool(run["text"])) for run in document["runs"]]
    assert runs == [(1, "code", 4, True)] * 7 + [(2, "JSON", 4, True)] * 7
    orders = [[(run["mode"], run["k"]) for run in document["runs"][i : i + 7]] for i in (0, 7)]
    assert orders[0] != orders[1]


def test_the_facts(document: dict[str, Any], folder: Path) -> None:
    assert {"duo", "llama-cpp-python", "python"} <= set(document["versions"])
    target, draft = document["models"]["target"], document["models"]["draft"]
    assert (list(target["sha256"]), draft["quantisation"]) == (["large.gguf"], "F32")
    assert len(target["sha256"]["large.gguf"]) == 64
    assert document["hardware"]["usable_cores"] >= 1
    assert (document["options"]["predict"], document["options"]["draft"], document["complete"]) == (4, "2,auto", True)
    assert (folder / "out.svg").read_bytes().startswith(b"<?xml")


def test_the_progress_is_shown(measured: Run) -> None:
    lines = measured.stderr.splitlines()
    assert sum(line.startswith("duo: warming up ") for line in lines) == 7
    assert [line.split()[1] for line in lines if line.startswith(("1/2 ", "2/2 "))] == ["code"] * 7 + ["JSON"] * 7


@pytest.mark.parametrize(("n_others", "is_said"), [(0.0, False), (50.0, True)])
def test_it_says_how_long_it_takes_and_that_the_machine_is_busy(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, n_others: float, is_said: bool
) -> None:
    monkeypatch.setattr("duo.cli.commands.bench.other_cpu_use", lambda _: n_others)
    run = duo("bench", "-m", tiny, *SHORT, "--modes", "plain,lookup", "--categories", "code", "-r", "3")
    assert run.status == 0, run.stderr
    assert ("duo: other programs use 50.0 of " in run.stderr) == is_said
    assert len(re.findall(r"^duo: about \d+ s more, after one of 3 rounds$", run.stderr, re.MULTILINE)) == 1


def markdown(run: Run) -> dict[str, Any]:
    table, _, facts = run.text.partition("```json\n")
    assert "| plain |     CPU |" in table
    return dict(json.loads(facts.removesuffix("```\n")))


def as_csv(run: Run) -> dict[str, Any]:
    rows = list(csv.DictReader(run.text.splitlines()))
    assert [(row["mode"], row["category"]) for row in rows] == [("plain", "all"), ("plain", "own")]
    return dict(json.loads(run.stderr.splitlines()[-1]))


def json_lines(run: Run) -> dict[str, Any]:
    found, row, by_category, facts = map(json.loads, run.text.splitlines())
    assert [found["type"], row["type"], by_category["type"], facts["type"]] == ["run", "row", "row", "facts"]
    assert (found["category"], row["category"], by_category["category"]) == ("own", "all", "own")
    assert row["tokens_per_s"] == found["tokens_per_s"] > 0
    return dict(facts)


@pytest.mark.parametrize(("name", "check"), [("md", markdown), ("csv", as_csv), ("jsonl", json_lines)])
def test_formats_and_own_prompts(tiny: Path, tmp_path: Path, name: str, check: Callable[[Run], dict[str, Any]]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\n", encoding="utf-8")
    run = duo("bench", "-m", tiny, *SHORT, "--modes", "plain", "--prompts", prompts, "--raw", "-o", name)
    assert run.status == 0, run.stderr
    facts = check(run)
    assert (facts["complete"], facts["models"]["draft"]) == (True, None)


def test_one_model_is_measured_plain_and_with_lookup(tiny: Path) -> None:
    run = duo("bench", "-m", tiny, *SHORT, "--peers", f"llama-speculative-simple={sys.executable}", "-o", "json")
    assert run.status == 0, run.stderr
    assert run.warnings == ["duo: warning: llama-speculative-simple needs a draft: skipped"]
    assert [row["mode"] for row in json.loads(run.text)["rows"]] == ["plain", "lookup"]
    refused = duo("bench", "-m", tiny, *SHORT, "--modes", "plain,async")
    assert_refused(refused, "--modes async needs a draft: name one with -md or -hfd", status=2)


def test_models_that_cannot_roll_back_are_measured_without_a_draft(recurrent: Path) -> None:
    pair = models(recurrent, recurrent)
    run = duo("bench", *pair, *SHORT, "-o", "json")
    assert run.status == 0, run.stderr
    assert [row["mode"] for row in json.loads(run.text)["rows"]] == ["plain"]
    assert any("cannot roll back" in line for line in run.warnings)
    run = duo("bench", *pair, *SHORT, "--modes", "plain,auto")
    assert (run.status, run.stdout) == (2, b"")
    assert run.stderr.splitlines()[-1].endswith("cannot roll back its cache and cannot draft: use --modes plain")
    assert duo("bench", *pair, *SHORT, "--modes", "plain").status == 0


def test_a_text_that_does_not_fit_is_refused(tiny: Path) -> None:
    run = duo("bench", "-m", tiny, *SHORT, "-c", "300", "-n", "290")
    assert run.status == 1
    assert "exceed the context of 300: reduce -n" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--modes", "plain,fast"],
            "unknown mode 'fast' (available: plain, lookup, sync, async, prepared, auto, remote)",
        ),
        (["--modes", ","], "--modes: the list is empty"),
        (["--draft", "4,x"], "--draft: 'x' is neither a number of at least 1 nor auto"),
        (["--draft", "0"], "--draft: '0' is neither a number of at least 1 nor auto"),
        (["-n", "1"], "'-n' / '--predict'"),
        (["-r", "0"], "'-r' / '--repetitions'"),
        (["--categories", "poem"], "--categories: unknown category 'poem' (available: chat, code"),
        (["--peers", "vllm=/bin/true"], "--peers: unknown program 'vllm' (available: llama-completion"),
        (["--peers", "llama-cli=/no/such"], "--peers llama-cli=/no/such: no such file: use llama-cli=PATH"),
        (["--peers", f"llama-cli={sys.executable},llama-cli=/bin/sh"], "llama-cli is given twice"),
        (["--peers", "llama-cli"], "--peers llama-cli=: no such file: use llama-cli=PATH"),
        (["--plot", "out.pdf"], "--plot writes .svg or .png, not out.pdf"),
        (["--plot", "/no/such/out.png"], "--plot /no/such/out.png: No such file or directory"),
        (["-o", "xml"], "'xml' is not one of 'md', 'csv', 'json', 'jsonl'"),
        (["-md", "x.gguf"], "a draft without a target"),
        (["--exact", "-fa", "off"], "--exact needs flash attention"),
        (["--slow-down", "2"], "--slow-down is about emulated devices: name some with --machine"),
        (["--machine", "/no/such.json"], "/no/such.json: No such file or directory"),
        (["--machine", f"{FAR}:other"], "m2-m1.json: no pair 'other' (it has: llama-8b)"),
        (["--machine", str(FAR), "--slow-down", "0"], "'--slow-down'"),
        (
            ["--machine", str(FAR), "--peers", "llama-cli=/bin/sh"],
            "--peers: other programs' devices cannot be emulated",
        ),
        (["--machine", str(FAR), "--plot", "out.svg"], "--plot: there are no plots of emulated devices"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], said: str) -> None:
    assert_refused(duo("bench", *arguments), said, status=2)


def test_bad_prompts_are_refused(tmp_path: Path) -> None:
    assert_refused(duo("bench", "--prompts", tmp_path / "none"), "none: no such file")
    (tmp_path / "empty").write_text("[only]\n", encoding="utf-8")
    assert_refused(
        duo("bench", "--prompts", tmp_path / "empty"), "the prompts file is empty: write one prompt per line"
    )


def test_a_picture_without_matplotlib_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert_refused(duo("bench", "--plot", "out.svg"), "plots need matplotlib: pip install matplotlib", status=2)


@pytest.mark.parametrize(("limits", "largest"), [("64,auto", 64), ("4,auto", 16), ("auto", None), ("2,8", 8)])
def test_the_contexts_have_room_for_the_most_candidates(limits: str, largest: int | None) -> None:
    assert read_plan(BenchOptions(limits=limits, peers="none")).largest == largest


# Emulated devices

EMULATED = {
    "name": "a machine",
    "source": "somebody",
    "assumed": ["read_ms"],
    "pairs": {"card": {"target_ms": {"1": 4}, "draft_ms": 1, "apart": True}},
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("duo.engine.emulated.Account.late", lambda *_: 0.0)  # whatever else this machine does
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(EMULATED))
    return path


@pytest.mark.parametrize("output", ["md", "csv", "json"])
def test_emulated_devices_are_named_everywhere(tiny: Path, machine: Path, output: str) -> None:
    options = ("--machine", f"{machine}:card", "--slow-down", "2", "--categories", "code", "-o", output)
    run = duo("bench", *models(tiny, tiny), "-n", "16", "-r", "1", *options)
    assert run.status == 0, run.stderr
    said = (
        "Emulated devices: a machine, card; measured by: somebody; assumed: read_ms. They ran 2 times slower than they "
        "are; times and rates are converted back. Prefill is not emulated."
    )
    assert f"duo: {said}" in run.stderr
    if output == "md":
        assert said in run.text
        assert "engine µs" in run.text
        assert "first token" not in run.text
    elif output == "csv":
        rows = list(csv.DictReader(run.text.splitlines()))
        assert {(row["emulated"], row["slow_down"]) for row in rows} == {("a machine, card", "2.0")}
        assert all(float(row["engine_us_per_step"]) > 0 for row in rows)
    else:
        document = json.loads(run.text)
        assert [row["mode"] for row in document["rows"]] == ["plain", "sync", "async", "prepared"]
        assert {row["threads"] for row in document["rows"]} == {"1", "1/1", "1+1"}
        assert {row["same_text"] for row in document["rows"][1:]} == {True}
        assert document["emulated"]["target_ms"][0] == 4


def test_devices_that_are_too_fast_are_refused(tiny: Path, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    fast = EMULATED | {"pairs": {"card": {"target_ms": {"1": 1e-4}, "draft_ms": 1e-4, "apart": True}}}
    machine.write_text(json.dumps(fast))
    run = duo("bench", *models(tiny, tiny), "-n", "4", "-r", "1", "--machine", machine)
    assert (run.status, run.stdout) == (1, b"")
    assert re.search(r"^duo: error: \d+ of \d+ decodes took longer than on the emulated", run.stderr, re.MULTILINE)


def test_what_emulated_devices_cannot_run(tiny: Path) -> None:
    run = duo("bench", *models(tiny, tiny), "--machine", FAR, "--modes", "plain,auto")
    assert_refused(run, "--modes auto: the emulated draft is on another machine: use async", status=2)
