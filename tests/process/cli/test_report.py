"""What a run reports: on stderr, to --json and to --trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duo.cli.terminal.report import render
from duo.spec.policy import Policy
from tests.command import ONE_EACH, SLOW_TARGET, duo

STATISTICS = {
    "prompt": {"tokens", "seconds", "tokens_per_s"},
    "generation": {
        "tokens",
        "seconds",
        "tokens_per_s",
        "time_to_first_token_s",
        "decodes",
        "tokens_per_decode",
        "target_ms_per_decode",
        "waited_s",
        "tokens_by_schedule",
        "stop",
    },
    "draft": {
        "drafted",
        "verified",
        "accepted",
        "accept_rate",
        "accept_rate_by_position",
        "decodes_by_candidates",
        "ms_per_token",
        "hidden",
        "unused",
        "error",
    },
    "memory": {"peak_bytes"},
}
POLICY = {
    "schedule",
    "changes",
    "rate",
    "forecast_tokens_per_s",
    "predicted_tokens_per_s",
    "acceptance",
    "target_ms",
    "draft_ms",
    "curve_ms",
    "latency_ms",
}
FACTS = {
    "versions": {"duo", "llama-cpp-python", "llama.cpp", "numpy"},
    "models": {"target", "draft"},
    "threads": {"target", "target_batch", "draft", "beside", "cores", "draft_cores", "apart"},
}
MODEL = {
    "path",
    "description",
    "bytes",
    "params",
    "layers",
    "quantisation",
    "vocabulary",
    "trained_context",
}


@pytest.fixture(scope="module")
def drafted(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Any]:
    """What a drafted run of 16 tokens said, its JSON and its trace."""
    target, draft = demo_pair
    folder = tmp_path_factory.mktemp("report")
    paths = ("--json", folder / "run.json", "--trace", folder / "run.trace")
    options = ("-n", "16", "--exact", "--draft", "4", "--schedule", "async", "-c", "300", *ONE_EACH, *paths)
    run = duo("-m", target, "-md", draft, "-p", "The capital of France is", *options, "-Cr", "0-0", before=SLOW_TARGET)
    assert (run.status, run.n_tokens) == (0, 16)
    return run.stderr, json.loads(paths[1].read_text()), json.loads(paths[3].read_text())


def test_json_has_stable_names(drafted: tuple[str, Any, Any]) -> None:
    _, report, _ = drafted
    assert set(report) == {*STATISTICS, *FACTS, "policy", "sampling", "system", "devices", "context", "options"}
    for name, keys in (STATISTICS | FACTS | {"policy": POLICY}).items():
        assert set(report[name]) == keys
    for model in report["models"].values():
        assert set(model) == MODEL
    for device in report["devices"]:
        assert set(device) == {"name", "description", "kind", "memory_free", "memory_total"}


def test_json_has_the_facts(drafted: tuple[str, Any, Any], demo_pair: tuple[Path, Path]) -> None:
    _, report, _ = drafted
    target, draft = report["models"]["target"], report["models"]["draft"]
    assert (target["path"], draft["path"]) == tuple(map(str, demo_pair))
    assert (target["quantisation"], draft["quantisation"]) == ("F16", "Q4_0")
    assert target["layers"] == draft["layers"] == 30
    assert target["vocabulary"] == 49152
    assert target["bytes"] > draft["bytes"]
    assert report["context"] == 300
    threads = report["threads"]
    assert (threads["target"], threads["target_batch"], threads["draft"], threads["beside"]) == (1, 1, [1], [1, 1])
    assert (threads["cores"], threads["apart"]) == ([0], False)
    assert 0 in threads["draft_cores"]
    options = report["options"]
    assert (options["prompt"], options["predict"], options["draft"]) == ("The capital of France is", 16, 4)
    assert (options["flash_attn"], options["cache_type_k"], options["color"]) == ("auto", "f16", "auto")
    assert (options["schedule"], options["profile"]) == ("async", True)


def test_the_figures_fit_together(drafted: tuple[str, Any, Any]) -> None:
    _, report, _ = drafted
    generation, draft = report["generation"], report["draft"]
    assert report["prompt"]["tokens"] == 5
    assert (generation["tokens"], generation["stop"]) == (16, "token limit")
    # Every step gives what was accepted and one token of the target's own; the first belongs to the prompt.
    assert draft["accepted"] + generation["decodes"] + 1 == 16
    assert draft["drafted"] >= draft["verified"] >= draft["accepted"] > 0
    assert draft["accept_rate"] == pytest.approx(draft["accepted"] / draft["verified"])
    assert draft["unused"] == pytest.approx(1 - draft["accepted"] / draft["drafted"])
    assert 1 <= len(draft["accept_rate_by_position"]) <= 4
    assert sum(draft["decodes_by_candidates"]) == generation["decodes"]
    assert sum(k * n for k, n in enumerate(draft["decodes_by_candidates"])) == draft["verified"]
    assert generation["tokens_by_schedule"] == {"async": 15}
    assert 0 <= draft["hidden"] <= 1
    assert draft["error"] is None
    for figures in (report["prompt"], generation):
        assert figures["seconds"] > 0
        assert figures["tokens_per_s"] > 0
    assert report["memory"]["peak_bytes"] > sum(model["bytes"] for model in report["models"].values())


def test_stderr_has_the_same_figures(drafted: tuple[str, Any, Any]) -> None:
    said, report, _ = drafted
    generation, draft, policy = report["generation"], report["draft"], report["policy"]
    heads = ["prompt", "first token", "generated", "target", "draft", "", "", "", "schedule", "learned", ""]
    heads += ["memory", "tokens: 16 t"]
    assert [line[:12].strip() for line in said.splitlines()] == heads
    for words in (
        "prompt      5 tokens in ",
        f"first token {generation['time_to_first_token_s']:.2f} s",
        "stopped: token limit",
        f"{generation['decodes']} decodes, {generation['target_ms_per_decode']:.2f} ms each, "
        f"{generation['tokens_per_decode']:.2f} tokens each",
        f"{draft['drafted']} drafted, {draft['verified']} verified, {draft['accepted']} accepted "
        f"({100 * draft['accept_rate']:.1f} %); {100 * draft['unused']:.1f} % of the drafted never used",
        f"{draft['ms_per_token']:.2f} ms/token, {100 * draft['hidden']:.1f} % of it hidden",
        "accepted by position, %: " + " ".join(f"{100 * share:.0f}" for share in draft["accept_rate_by_position"]),
        "decodes × candidates verified: "
        + ", ".join(f"{n} × {k}" for k, n in enumerate(draft["decodes_by_candidates"]) if n),
        "schedule    15 tokens async; forecast in tokens/s: ",
        f"learned     side by side: T({', '.join(policy['target_ms']['beside'])}) = ",
        f"draft {policy['draft_ms']['beside']:.1f} ms",
        f"{100 * policy['acceptance']:.1f} % accepted, λ = {policy['rate']:.1f} tokens/s",
        f"memory      {report['memory']['peak_bytes'] / 1e6:.0f} MB",
    ):
        assert words in said
    assert said.splitlines()[-1] == f"tokens: 16 tps: {generation['tokens_per_s']:.3f}"


def test_the_trace_has_both_lanes(drafted: tuple[str, Any, Any]) -> None:
    _, report, events = drafted
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(lanes.values()) == ["draft", "target"]
    timed = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert {name: events[0]["args"]["about"][name] for name in ("target", "draft")} == {
        role: Path(report["models"][role]["path"]).name for role in ("target", "draft")
    }
    assert all(event["pid"] == 1 and event["ts"] >= 0 and event["dur"] >= 0 for event in timed)

    def count(lane: str, name: str) -> int:
        return sum(lanes[event["tid"]] == lane and event["name"] == name for event in timed)

    assert count("target", "prompt") == 1
    assert count("target", "decode") == report["generation"]["decodes"]
    assert count("target", "commit") == count("target", "verify") == report["generation"]["decodes"] + 1
    assert sum(event["args"]["tokens"] for event in timed if event["name"] == "commit") == 16
    assert count("draft", "publish") == report["draft"]["drafted"]
    assert count("draft", "draft") + count("draft", "catch up") == report["draft"]["drafted"]


def test_a_plain_run_has_no_draft(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = duo("-m", tiny, "-p", "the cat", "-n", "4", "-t", "1", "--json", path)
    report = json.loads(path.read_text())
    assert report["draft"] is report["models"]["draft"] is None
    assert set(report["generation"]) == STATISTICS["generation"]
    assert "policy" not in report
    assert "draft " not in run.stderr.replace("for the draft", "")


def test_nothing_generated_is_nothing_divided(tiny: Path, tmp_path: Path) -> None:
    path, trace = tmp_path / "run.json", tmp_path / "run.trace"
    run = duo("-m", tiny, "-md", tiny, "-p", "the cat", "-n", "0", *ONE_EACH, "--json", path, "--trace", trace)
    assert run.stderr.splitlines()[-1] == "tokens: 0 tps: 0.000"
    generation = json.loads(path.read_text())["generation"]
    assert (generation["tokens"], generation["tokens_per_s"], generation["time_to_first_token_s"]) == (0, None, None)
    json.loads(trace.read_text())


def test_one_token_has_no_rate(tiny: Path) -> None:
    assert duo("-m", tiny, "-p", "the cat", "-n", "1", "-t", "1").stderr.splitlines()[-1] == "tokens: 1 tps: 0.000"


def test_of_many_changes_the_first_are_shown(drafted: tuple[str, Any, Any]) -> None:
    _, report, _ = drafted
    changes = [{"tokens": 10 * n, "schedule": "off", "reason": f"reason {n}"} for n in range(1, 9)]
    for n_changes, last in ((0, None), (5, "off at 50 (reason 5)"), (8, "and 3 more changes")):
        lines = render(report | {"policy": report["policy"] | {"changes": changes[:n_changes]}}).splitlines()
        at = [line.split()[0] for line in lines].index("schedule")
        shown = lines[at + 1 : at + 1 + min(n_changes, 6)]
        assert [line.strip() for line in shown[:5]] == [
            f"off at {10 * n} (reason {n})" for n in range(1, 1 + min(n_changes, 5))
        ]
        assert last is None or shown[-1].strip() == last
        assert lines[at + 1 + len(shown)].startswith("learned ")


def test_a_policy_that_has_learned_nothing_is_rendered(drafted: tuple[str, Any, Any]) -> None:
    _, report, _ = drafted
    nothing = {"alone": None, "beside": None}
    policy = Policy(4, 8).statistics()
    assert (policy["draft_ms"], policy["curve_ms"]) == (nothing, nothing)
    said = render(report | {"policy": policy, "generation": report["generation"] | {"tokens_by_schedule": {}}})
    assert "schedule    sync; forecast in tokens/s: -" in said
    assert "learned" not in said
