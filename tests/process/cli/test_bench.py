"""`duo bench`: a table for the real pair in every format, programs beside it, and what it refuses."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from duo.cli.commands.bench import _programs
from duo.cli.options.bench import BenchOptions
from duo.cli.options.bench_plan import read_plan
from duo.cli.options.run import RunOptions
from duo.config import ModelConfig
from tests.command import ONE_EACH, ROOT, Argument, assert_refused, duo, environment, models
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.unit.bench.recorded import recorded

SHORT = ("-n", "16", "-r", "1", "--peers", "none", *ONE_EACH)
PROGRAMS = ROOT / "build" / "peers" / "bin"

# Code for `before`: says when a batch is decoded, which takes its time.
BATCHES = """
import sys, time
from duo.llama.context import Context
decode = Context.decode
def telling(self, tokens, n_rows=1):
    if len(tokens) > 100:
        print(f"<{len(tokens)}>", file=sys.stderr, flush=True)
        time.sleep(0.5)
    return decode(self, tokens, n_rows)
Context.decode = telling
"""

# A column of the CSV for each thing that the table promises to say.
PROMISED = {
    "mode", "target", "target_quantisation", "draft", "draft_quantisation", "devices", "threads", "k", "category",
    "prompt_tokens_per_s", "tokens_per_s", "tokens_per_s_lower_quartile", "tokens_per_s_upper_quartile", "ms_per_token",
    "speed_up", "speed_up_low", "speed_up_high", "accept_rate", "tokens_per_decode", "target_ms_per_decode",
    "draft_ms_per_token", "hidden", "waste", "first_token_s", "same_text",
}  # fmt: skip


def bench(pair: tuple[Path, Path], *arguments: Argument) -> tuple[str, str]:
    """What it writes to stdout and stderr."""
    run = duo("bench", *models(*pair), *arguments)
    assert run.status == 0, run.stderr
    return run.text, run.stderr


def check_facts(facts: dict[str, Any], pair: tuple[Path, Path]) -> None:
    """Versions, checksums, hardware and options are all there."""
    assert {"duo", "llama-cpp-python", "python"} <= set(facts["versions"])
    sums = facts["models"]["target"]["sha256"]
    assert list(sums) == [pair[0].name]
    assert sums[pair[0].name].startswith("a269e318")
    assert facts["models"]["draft"]["quantisation"] == "Q4_0"
    assert facts["hardware"]["usable_cores"] >= 1
    assert facts["options"]["predict"] == 16


def test_a_table_in_markdown(demo_pair: tuple[Path, Path]) -> None:
    text, said = bench(demo_pair, *SHORT)
    table, _, facts = text.partition("```json\n")
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0]][:4] == ["mode", "devices", "threads", "k"]
    modes = [line[0].strip() for line in lines]
    assert modes[2:6] == ["plain", "sync", "async", "auto"]
    assert all(float(line[5].strip()) > 0 for line in lines[2:6])
    check_facts(json.loads(facts.removesuffix("```\n")), demo_pair)
    progress = [line for line in said.splitlines() if line.startswith("1/1 chat ")]
    assert len(progress) == 4
    assert said.count(" warms up\n") == 4


def test_every_mode_in_csv(demo_pair: tuple[Path, Path]) -> None:
    more = ("--modes", "remote,sync,plain", "--draft", "2,auto", "--exact", "-o", "csv")
    text, said = bench(demo_pair, *SHORT, *more)
    rows = list(csv.DictReader(text.splitlines()))
    assert set(rows[0]) >= PROMISED
    ways = [("remote", "2"), ("remote", "auto"), ("sync", "2"), ("sync", "auto"), ("plain", "")]
    assert [(row["mode"], row["k"]) for row in rows if row["category"] == "all"] == ways
    assert [row["category"] for row in rows] == ["all"] * 5 + ["chat"] * 5
    assert {row["same_text"] for row in rows if row["mode"] != "plain"} == {"yes"}
    assert {row["threads"] for row in rows} == {"1", "1/1", "1+1"}
    check_facts(json.loads(said.splitlines()[-1]), demo_pair)


def test_json_has_every_run(demo_pair: tuple[Path, Path]) -> None:
    more = ("--modes", "plain,async", "--categories", "code,JSON", "-r", "2", "-o", "json")
    document = json.loads(bench(demo_pair, *SHORT, *more)[0])
    check_facts(document, demo_pair)
    runs = [(run["round"], run["category"], run["mode"], run["tokens"]) for run in document["runs"]]
    assert runs == [
        (1, "code", "async", 16),
        (1, "code", "plain", 16),
        (2, "JSON", "plain", 16),
        (2, "JSON", "async", 16),
    ]
    assert all(run["text"] for run in document["runs"])


def test_json_lines_begin_with_the_runs(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once upon a time\n", encoding="utf-8")
    more = ("--modes", "plain", "--prompts", prompts, "--raw", "-o", "jsonl")
    run, row, by_category, facts = map(json.loads, bench(demo_pair, *SHORT, *more)[0].splitlines())
    assert (run["category"], row["category"], by_category["category"]) == ("own", "all", "own")
    assert row["tokens_per_s"] == run["tokens_per_s"] > 0
    check_facts(facts, demo_pair)


def test_one_model_is_measured_plain(demo_pair: tuple[Path, Path]) -> None:
    beside = ("--peers", f"llama-speculative-simple={sys.executable}")
    run = duo("bench", *models(demo_pair[1]), *SHORT, *beside, "-o", "json")
    assert run.status == 0, run.stderr
    assert run.warnings == ["duo: warning: llama-speculative-simple needs a draft: left out"]
    document = json.loads(run.text)
    assert [row["mode"] for row in document["rows"]] == ["plain"]
    assert document["models"]["draft"] is None


@pytest.mark.parametrize("name", ["out.svg", "out.png"])
def test_a_picture(demo_pair: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    bench(demo_pair, *SHORT, "--plot", tmp_path / name)
    assert (tmp_path / name).read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")


def test_a_program_beside_it(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("completion.out", "completion.err"):
        (tmp_path / name).write_text(recorded(name), encoding="utf-8")
    program = tmp_path / "replay"
    program.write_text(f"#!/bin/sh\necho \"$@\" >>{tmp_path}/asked\ncat {tmp_path}/completion.out\n"
                       f"cat {tmp_path}/completion.err >&2\n", encoding="utf-8")  # fmt: skip
    program.chmod(0o755)
    more = ("--modes", "plain", "--peers", f"llama-completion={program}", "-t", "1", "-n", "24", "-o", "json")
    document = json.loads(bench(demo_pair, *SHORT, *more)[0])
    peer = document["rows"][1]
    assert (peer["mode"], peer["tokens_per_s"], peer["threads"]) == ("llama-completion", 78.54, "1")
    assert peer["first_token_s"] is peer["accept_rate"] is None  # it does not say
    assert peer["same_text"] is False
    assert document["peers"] == {"llama-completion": {"path": str(program), "version": None}}
    version, warm_up, asked = (tmp_path / "asked").read_text().splitlines()
    assert version == "--version"
    assert " -n 16 " in warm_up
    assert " -n 24 " in asked


@pytest.mark.skipif(not PROGRAMS.is_dir(), reason="benchmarks/peers.sh has not built llama.cpp's programs")
def test_llama_cpp_s_own_programs(demo_pair: tuple[Path, Path]) -> None:
    names = ("llama-completion", "llama-cli", "llama-speculative-simple", "llama-server")
    there = [name for name in names if (PROGRAMS / name).exists()]
    programs = ",".join(f"{name}={PROGRAMS / name}" for name in there)
    more = ("--modes", "plain", "--exact", "-r", "2", "--categories", "chat,summary", "--peers", programs)
    rows = json.loads(bench(demo_pair, *SHORT, *more, "-o", "json")[0])["rows"]
    assert [row["mode"] for row in rows] == ["plain", *there]
    assert all(row["tokens_per_s"] > 0 and row["prompt_tokens_per_s"] > 0 for row in rows)


def test_programs_with_gpus_are_told_where_everything_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(BenchOptions(limits="2,auto", peers="none"))
    target = ModelConfig(
        Path("a.gguf"), n_gpu_layers=7, devices=("CUDA0", "CUDA1"), split_mode="row", tensor_split=(3, 1), main_gpu=1
    )
    draft = ModelConfig(Path("b.gguf"), n_gpu_layers=-1)
    without = _programs(RunOptions(), plan, target, draft)
    assert (without.options[-2:], without.draft_options) == (["-dev", "none"], ["-devd", "none"])
    monkeypatch.setattr("duo.cli.commands.bench.gpus", lambda: ["CUDA0", "CUDA1"])
    programs = _programs(RunOptions(), plan, target, draft)
    shared = ["-ngl", "7", "-dev", "CUDA0,CUDA1", "-sm", "row", "-mg", "1", "-ts", "3,1"]
    assert programs.options[-len(shared) :] == shared
    assert programs.draft_options == ["-ngld", "all"]
    assert programs.n_max == [2, 3]


def test_a_program_on_the_path_takes_part_if_it_can(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    program = tmp_path / "llama-completion"
    program.write_text("#!/bin/sh\necho no such thing >&2\nexit 4\n", encoding="utf-8")
    program.chmod(0o755)
    path = f"{tmp_path}:{environment()['PATH']}"
    arguments = (*models(*demo_pair), *SHORT[:4], *ONE_EACH, "--modes", "plain", "-o", "csv")
    run = duo("bench", *arguments, env={"PATH": path})
    assert run.status == 0, run.stderr
    assert run.warnings == ["duo: warning: llama-completion exited with 4: no such thing: left out"]
    peer = list(csv.DictReader(run.text.splitlines()))[1]
    assert (peer["mode"], peer["tokens_per_s"], peer["same_text"]) == ("llama-completion", "", "")
    # Asked for by name, it has to run.
    run = duo("bench", *arguments, "--peers", f"llama-completion={program}")
    assert run.stderr.splitlines()[-1] == "duo: error: llama-completion exited with 4: no such thing"
    assert (run.status, run.stdout) == (1, b"")


def test_after_ctrl_c_there_is_a_table_of_what_was_measured(demo_pair: tuple[Path, Path]) -> None:
    arguments = ("bench", *models(*demo_pair), "-n", "64", "-r", "50", "--peers", "none", *ONE_EACH)
    with Terminal(*arguments, stderr_too=True) as terminal:
        terminal.read_until(b"1/50 chat")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    said, _, table = terminal.shown.decode().partition("duo: interrupted after ")
    n_texts = said.count("1/50 chat ")
    assert table.startswith(f"{n_texts} of 200 texts")
    lines = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| ")]
    runs = lines[0].index("runs")
    assert sum(int(line[runs]) for line in lines[2:6]) == n_texts
    assert json.loads(table.partition("```json")[2].rpartition("```")[0])["complete"] is False


def test_ctrl_c_does_not_wait_for_a_long_prompt(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("word " * 4000, encoding="utf-8")
    arguments = ("bench", *models(*demo_pair), "--prompts", prompts, "--modes", "plain", *SHORT)
    with Terminal(*arguments, stderr_too=True, before=BATCHES) as terminal:
        terminal.read_until(b"<512>")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert terminal.shown.count(b"<512>") < 7, "that many are in 4000 tokens"


def test_a_program_that_fails_later_costs_nothing_that_was_measured(
    demo_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in ("completion.out", "completion.err"):
        (tmp_path / name).write_text(recorded(name), encoding="utf-8")
    program = tmp_path / "tires"  # of its version, the warm-up and one round
    replay = f"cat {tmp_path}/completion.out\ncat {tmp_path}/completion.err >&2"
    count = f"echo >>{tmp_path}/asked\n[ $(wc -l <{tmp_path}/asked) -gt 3 ] && exit 5"
    program.write_text(f"#!/bin/sh\n{count}\n{replay}\n", encoding="utf-8")
    program.chmod(0o755)
    more = ("--modes", "plain", "--peers", f"llama-completion={program}", "-r", "4", "-o", "json")
    run = duo("bench", *models(*demo_pair), *SHORT, *more)
    assert run.status == 1
    assert run.stderr.splitlines()[-1] == "duo: error: llama-completion exited with 5: it said nothing"
    document = json.loads(run.text)
    assert document["complete"] is False
    assert [(row["mode"], row["runs"] + row["looping_runs"]) for row in document["rows"]][1] == ("llama-completion", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--modes", "plain,fast"], "no mode 'fast' (there are plain, sync, async, auto, remote)"),
        (["--modes", ","], "--modes needs at least one name"),
        (["--draft", "4,x"], "--draft takes numbers of at least 1 and auto, not 'x'"),
        (["--draft", "0"], "--draft takes numbers of at least 1 and auto, not '0'"),
        (["-n", "1"], "'-n' / '--predict'"),
        (["-r", "0"], "'-r' / '--repetitions'"),
        (["--categories", "poem"], "--categories: no prompt of 'poem' (there are chat, code"),
        (["--peers", "vllm=/bin/true"], "no program 'vllm' is known"),
        (["--peers", "llama-cli=/no/such"], "--peers takes llama-cli=PATH; there is no program '/no/such'"),
        (["--peers", f"llama-cli={sys.executable},llama-cli=/bin/sh"], "llama-cli is named twice"),
        (["--peers", "llama-cli"], "--peers takes llama-cli=PATH; there is no program ''"),
        (["--plot", "out.pdf"], "--plot draws .svg or .png, not out.pdf"),
        (["--plot", "/no/such/out.png"], "--plot /no/such/out.png: No such file or directory"),
        (["-o", "xml"], "'xml' is not one of 'md', 'csv', 'json', 'jsonl'"),
        (["-md", "x.gguf"], "a draft without a target"),
        (["--exact", "-fa", "off"], "--exact needs flash attention"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], said: str) -> None:
    assert_refused(duo("bench", *arguments), said, status=2)


def test_bad_prompts_are_refused(tmp_path: Path) -> None:
    assert_refused(duo("bench", "--prompts", tmp_path / "none"), "none: no such file")
    (tmp_path / "empty").write_text("[only]\n", encoding="utf-8")
    assert_refused(duo("bench", "--prompts", tmp_path / "empty"), "there is no prompt: write one in each line")


def test_a_mode_that_needs_a_draft_needs_one(tiny: Path) -> None:
    run = duo("bench", "-m", tiny, "--modes", "plain,async", "--peers", "none")
    assert_refused(run, "--modes async needs a draft: name one with -md or -hfd", status=2)


def test_models_that_cannot_roll_back_are_measured_plain(recurrent: Path) -> None:
    pair = ("-m", recurrent, "-md", recurrent)
    run = duo("bench", *pair, *SHORT, "-o", "json")
    assert run.status == 0, run.stderr
    assert [row["mode"] for row in json.loads(run.text)["rows"]] == ["plain"]
    assert any("cannot" in line for line in run.warnings)
    run = duo("bench", *pair, *SHORT, "--modes", "plain,auto")
    assert (run.status, run.stdout) == (2, b"")
    assert run.stderr.splitlines()[-1].endswith("cannot take tokens back: nothing is drafted, take --modes plain")
    assert duo("bench", *pair, *SHORT, "--modes", "plain").status == 0


def test_a_text_that_does_not_fit_is_refused(demo_pair: tuple[Path, Path]) -> None:
    run = duo("bench", *models(*demo_pair), *SHORT, "-c", "64", "-n", "60")
    assert run.status == 1
    assert "do not fit 64: take a smaller -n" in run.stderr


def test_a_picture_without_matplotlib_is_refused_at_once() -> None:
    hide = "import sys; sys.modules['matplotlib'] = sys.modules['matplotlib.figure'] = None"
    run = duo("bench", "--plot", "out.svg", before=hide)
    assert_refused(run, "plots need matplotlib: pip install matplotlib", status=2)


def test_the_modules_do_not_wait_for_matplotlib() -> None:
    check = "import duo.cli.bench, sys; sys.exit('matplotlib' in sys.modules)"
    assert duo(before=f"{check}").status == 0, sys.executable


@pytest.mark.parametrize(("limits", "largest"), [("64,auto", 64), ("4,auto", 16), ("auto", None), ("2,8", 8)])
def test_the_contexts_have_room_for_the_most_candidates(limits: str, largest: int | None) -> None:
    assert read_plan(BenchOptions(limits=limits, peers="none")).largest == largest
