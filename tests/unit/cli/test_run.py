"""What a run writes: the text to stdout, the report to stderr, --json, --trace, the log; the comparison of the demo."""

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.engine.stream import Stream
from tests.command import ONE_EACH, models
from tests.unit.cli.runner import duo

TEXT = ("-p", "the cat", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)
KEYS = {
    "prompt": "tokens seconds tokens_per_s",
    "generation": "tokens seconds tokens_per_s time_to_first_token_s decodes tokens_per_decode target_ms_per_decode "
    "waited_s tokens_by_schedule stop",
    "draft": "drafted verified accepted accept_rate accept_rate_by_position decodes_by_candidates ms_per_token "
    "computed_s hidden unused error vocabulary lost_to_translation branches "
    "alternatives alternatives_accepted",
    "memory": "peak_bytes",
    "cores": "all now fewest",
    "sampling": "temperature seed mode",
    "policy": "schedule schedules changes rate forecast_tokens_per_s predicted_tokens_per_s acceptance scored "
    "max_gain target_ms draft_ms draft_ms_by_sequences alone_ms curve_ms latency_ms n_branches ranks measured pair_ms",
    "versions": "duo llama-cpp-python llama.cpp numpy",
    "models": "target draft",
    "threads": "target target_batch draft concurrent cores draft_cores separate_devices",
}
MODEL_KEYS = (
    "path name description bytes params layers quantisation vocabulary trained_context expert_bytes expert_bytes_on_cpu"
)


def heads(said: str) -> list[str]:
    """The first word of each line, without that of the cores that other programs have left."""
    return [line.split()[0] for line in said.splitlines() if not line.startswith("cores ")]


# Logs


def test_the_log_appears_only_where_it_is_asked_for(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "llama.log"
    plain, to_file = duo("-m", tiny, *TEXT), duo("-m", tiny, *TEXT, "--log-file", log)
    verbose = duo("-m", tiny, *TEXT, "-v")
    assert "llama_model_loader" not in plain.stderr
    assert heads(to_file.stderr) == heads(plain.stderr)
    assert "llama_model_loader" in log.read_text()
    assert "llama_model_loader" in verbose.stderr
    assert heads(verbose.stderr)[-4:] == ["time", "speed", "RAM", "tokens:"]
    assert verbose.stdout == to_file.stdout == plain.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk(tiny: Path) -> None:
    for option in ("--json", "--trace"):
        run = duo("-m", tiny, *TEXT, option, "/dev/full")
        assert run.status == 1
        *_, statistics, error = run.stderr.splitlines()
        assert statistics.startswith("tokens: 24 ")
        assert error == f"duo: error: {option} /dev/full: No space left on device"
    run = duo("-m", tiny, *TEXT, "--log-file", "/dev/full")
    assert (run.status, run.n_tokens) == (0, 24), "the log is no reason to stop"
    assert "Traceback" not in run.stderr


# --json and --trace


@pytest.mark.usefixtures("slow_target")  # so that the draft pays
def test_json_has_stable_names(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = duo(*models(tiny, tiny), *TEXT, "--schedule", "sync", "--json", path)
    assert (run.status, run.n_tokens, run.warnings) == (0, 24, [])
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert set(report) == {*KEYS, "system", "devices", "context", "options", "lookup"}
    assert {name: set(report[name]) for name in KEYS} == {name: set(keys.split()) for name, keys in KEYS.items()}
    assert {*report["models"]["draft"]} == set(MODEL_KEYS.split())
    assert {*report["devices"][0]} == {"name", "description", "kind", "memory_free", "memory_total"}


@pytest.mark.usefixtures("slow_target")  # so that the lookup pays
def test_json_of_a_run_with_a_lookup_and_without(tiny: Path, tmp_path: Path) -> None:
    """What the tiny model writes repeats itself."""
    path, options = tmp_path / "run.json", ("-p", "the cat", "--ignore-eos", "-n", "200", "--json")
    run = duo("-m", tiny, *options, path)
    report = json.loads(path.read_text())
    lookup = report["lookup"]
    assert set(lookup) == {"verified", "accepted", "accept_rate", "decodes", "accepted_by_schedule"}
    assert lookup["verified"] >= lookup["accepted"] >= 200 - 1 - report["generation"]["decodes"] >= 0
    assert f"lookup  {lookup['verified']} verified, " in run.stderr
    assert duo("-m", tiny, *options, path, "--lookup", "off").stdout == run.stdout
    report = json.loads(path.read_text())
    assert (report["lookup"], "policy" in report) == (None, False)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_pipe_is_coloured_only_when_asked_for(tiny: Path, no_color: str) -> None:
    plain, mark = duo("-m", tiny, *TEXT), re.compile(rb"\x1b\[[0-9;]*m")
    for option, marked in (("auto", False), ("never", False), ("always", True)):
        run = duo(*models(tiny, tiny), *TEXT, "--color", option, env={"NO_COLOR": no_color})
        assert bool(mark.search(run.stdout)) == marked
        assert mark.sub(b"", run.stdout) == plain.stdout
        assert not mark.search(run.stderr.encode())


# Warnings


def test_more_threads_than_cores(tiny: Path) -> None:
    many = str(8 * (os.cpu_count() or 1))
    for options in (("-t", many), ("-md", tiny, "-td", many)):
        run = duo("-m", tiny, "-p", "the cat", "-n", "1", *options)
        (warning,) = run.warnings
        assert "cores will slow each other down" in warning
        assert (run.status, run.n_tokens) == (0, 1)
    assert duo(*models(tiny, tiny), "-p", "the cat", "-n", "2", "-t", "1").warnings == []


# The demo: its comparison with the target alone changes nothing else


DEMO = ("-m", "demo", "-p", "the cat", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)


@pytest.fixture
def demo(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo pair of tiny models."""
    monkeypatch.setattr("duo.loading.demo_pair", lambda *_, **__: (kin["llama"], kin["llama"]))


def last_heads(said: str) -> list[str]:
    return [re.split(" {2,}|(?<=:) ", line)[0] for line in said.splitlines()][-5:]


COMPARED = ["duo", "target alone", "duo chose", "because", "tokens:"]
USUAL = ["speed", "draft", "gain", "RAM", "tokens:"]


@pytest.mark.usefixtures("demo")
def test_the_demo_is_compared_with_the_target_alone(kin: dict[str, Path]) -> None:
    text = duo(*DEMO, "-m", kin["llama"]).stdout
    run = duo(*DEMO)
    assert (run.status, run.stdout, run.n_tokens, last_heads(run.stderr)) == (0, text, 24, COMPARED)
    assert re.search(r"^target alone  24 tokens, .* tokens/s; the same text$", run.stderr, re.MULTILINE)
    sampled = duo(*DEMO, "--temp", "1", "-s", "5")
    assert sampled.stdout != text
    assert "; the same text\n" in sampled.stderr
    assert "; seed 5\n" in sampled.stderr


@pytest.mark.usefixtures("demo")
def test_what_is_not_compared(kin: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def generated(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("duo.cli.commands.run._write_alone", generated)
    assert last_heads(duo(*DEMO, "-m", kin["llama"], "-md", kin["llama"]).stderr) == USUAL
    for options in (("--json", tmp_path / "run.json"), ("--schedule", "sync"), ("-n", "1")):
        assert last_heads(duo(*DEMO, *options).stderr) == USUAL, options
    assert "target alone  " not in duo(*DEMO, "-v").stderr + duo(*DEMO, "--draft", "0").stderr


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_leaves_out_the_comparison(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """Before there is a stream to stop, or when the text is whole, which is not known yet."""
    owner, name = (Stream, "completion") if begun else (Engine, "call")
    worked = getattr(owner, name)

    def interrupted(*arguments: Any) -> Any:
        found = worked(*arguments)
        watcher = next(thread for thread in threading.enumerate() if thread.name == "duo-signals")
        os.kill(os.getpid(), signal.SIGINT)  # from the main thread, which therefore handles it at once
        watcher.join()
        return found

    monkeypatch.setattr(owner, name, interrupted)
    run = duo(*DEMO)
    assert (run.status, run.n_tokens, last_heads(run.stderr)) == (130, 24, USUAL)
    assert "stopped: token limit" in run.stderr, "the text is whole"
