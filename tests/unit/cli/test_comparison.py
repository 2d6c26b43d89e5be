"""The demo: what it says at its end, and that the comparison with the target alone changes nothing else."""

from __future__ import annotations

import os
import re
import signal
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from duo.cli.terminal.comparison import render_comparison
from duo.engine.engine import Engine
from duo.engine.slot import Drafts, Slot, TextRequest
from duo.engine.statistics import GenerationStatistics, PromptStatistics, Statistics
from duo.engine.stream import Completion, Stream
from duo.errors import DecodeError
from duo.models.profiles import Profile
from duo.spec.policy import Policy
from tests.command import ONE_EACH
from tests.unit.cli.runner import duo
from tests.unit.cli.test_report import DRAFTED

DEMO = ("-m", "demo", "-p", "the cat", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)
TOKENS = list(range(16))
TARGET = "target alone  16 tokens, 10.0 tokens/s; "


def alone(tokens: list[int] = TOKENS, rate: float = 10.0) -> Completion:
    generation = GenerationStatistics(len(tokens), 1.5, rate, 0.1, 15, 1.0, 100.0, 0.0, {"off": 15}, "token limit")
    return Completion("", tuple(tokens), "token limit", Statistics(PromptStatistics(5, 0.5, 10.0), generation, None))


def lines(
    statistics: dict[str, Any] | None = None, again: Completion | None = None, *, exact: bool = False
) -> list[str]:
    return render_comparison(DRAFTED | (statistics or {}), TOKENS, again or alone(), exact=exact).splitlines()


def test_a_draft_that_paid() -> None:
    assert lines() == [
        "duo           16 tokens, 15.0 tokens/s: 1.50 times as fast as the target alone",
        f"{TARGET}the same text",
        "duo chose     concurrent drafting for 10 tokens, sequential drafting for 5",
        "because       forecast 10.0 tokens/s alone, 16.0 with a draft that is 60 % right",
        "tokens: 16 tps: 15.000",
    ]


@pytest.mark.parametrize("rate", [15.6, 14.4])
def test_a_small_difference_is_no_gain(rate: float) -> None:
    verdict = "duo           16 tokens, 15.0 tokens/s: about as fast as the target alone"
    assert lines(again=alone(rate=rate))[0] == lines({"draft": None}, alone(rate=rate))[0] == verdict


@pytest.mark.parametrize(
    ("alone_ms", "verdict"),
    [
        (None, "0.94 times as fast as the target alone"),
        (61.0, "0.94 times as fast as the target alone"),
        (64.0, "0.94 times as fast as the target alone"),
        (60.0, "within the noise of this machine"),
        (65.0, "within the noise of this machine"),
    ],
)
def test_a_difference_needs_two_measurements_that_agree(alone_ms: float | None, verdict: str) -> None:
    """One is the text of the target alone, the other its own decodes in the first text, if there were enough."""
    policy = DRAFTED["policy"] | {"alone_ms": {"this_run": alone_ms, "earlier_runs": 50.0}}
    assert lines({"policy": policy}, alone(rate=16.0))[0] == f"duo           16 tokens, 15.0 tokens/s: {verdict}"
    for draft in (None, DRAFTED["draft"] | {"drafted": 0}):
        said = lines({"policy": policy, "draft": draft}, alone(rate=16.0))[0]
        assert said.endswith("within the noise of this machine"), "nothing was drafted in either"


def test_the_same_text_is_checked() -> None:
    other, sampled = alone([*TOKENS[:6], 99, *TOKENS[7:]]), DRAFTED["sampling"] | {"temperature": 0.5}
    assert lines(again=other)[1] == f"{TARGET}differs from token 7: rounding; --exact avoids it"
    assert lines(again=other, exact=True)[1] == f"{TARGET}differs from token 7"
    rejection = lines({"sampling": sampled | {"mode": "rejection"}}, other)
    assert rejection[0].endswith("; seed 7")
    assert rejection[1] == f"{TARGET}differs from token 7: --verify rejection"
    assert lines(again=alone(TOKENS[:4]))[1] == (
        "target alone  4 tokens, 10.0 tokens/s; differs from token 5: rounding; --exact avoids it"
    )


def chosen(tokens: dict[str, int], policy: dict[str, Any], draft: dict[str, Any] | None) -> list[str]:
    """What is said about the choice."""
    by_schedule = {"generation": DRAFTED["generation"] | {"tokens_by_schedule": tokens}}
    said = lines(by_schedule | {"policy": DRAFTED["policy"] | policy, "draft": draft})
    assert [line[:14].rstrip() for line in said[2:4]] == ["duo chose", "because"]
    return [line[14:] for line in said[2:4]]


def test_the_reason_of_the_choice() -> None:
    draft = DRAFTED["draft"]
    slow, close, fast = ({"forecast_tokens_per_s": {"off": 10.0, "sync": r, "async": 5.0}} for r in (9.0, 10.2, 16.0))
    is_right = "with a draft that is 60 % right"
    assert chosen({"off": 15}, slow, draft) == [
        "the target alone throughout", f"forecast 10.0 tokens/s alone, 9.0 {is_right}",
    ]  # fmt: skip
    for policy, words in (
        (close, "little to gain: forecast 10.0 tokens/s alone, 10.2 with the draft"),
        (fast, "known too late: forecast 10.0 tokens/s alone, 16.0 with the draft"),
    ):
        assert chosen({"sync": 3, "off": 12}, policy, draft) == [
            "the target alone for 12 tokens, sequential drafting for 3", words,
        ]  # fmt: skip
    assert chosen({"sync": 12, "off": 3}, slow, draft)[1].startswith("known too late: ")
    assert chosen({"off": 15}, slow | {"most_gain": 1.01}, None)[1].startswith("even a draft that is right 95 %")
    assert chosen({"off": 15}, {"forecast_tokens_per_s": {}, "schedule": "off"}, draft)[1].startswith(
        "trying the draft would "
    )
    assert chosen({"off": 15}, slow, draft | {"error": "out of memory"})[1] == "the draft failed: out of memory"


LOOKUP = {"verified": 14, "accepted": 9, "accept_rate": 9 / 14, "decodes": 3, "accepted_by_schedule": {"off": 9}}


def test_candidates_from_the_text_itself() -> None:
    generation = DRAFTED["generation"] | {"tokens_by_schedule": {"off": 15}}
    said = lines({"generation": generation, "draft": None, "lookup": LOOKUP})
    assert said[0].endswith("1.50 times as fast as the target alone"), "its own decodes in this text are no comparison"
    assert said[2:4] == [
        "duo chose     lookup for 9 tokens, the target alone for 6",
        "because       the text repeats itself or the prompt: 9 of 14 such tokens were right",
    ]
    assert lines({"lookup": LOOKUP | {"accepted": 7}})[3].startswith("because       forecast"), "the draft had as many"


def test_no_line_is_longer_than_80_columns() -> None:
    rates = ({"off": 98.1, "sync": rate, "async": 60.2} for rate in (85.3, 99.3, 106.3))
    two = {"tokens": 256, "tokens_per_s": 98.1, "tokens_by_schedule": {"off": 240, "sync": 15}}
    for found, most in product(rates, (1.01, None)):
        for draft in (DRAFTED["draft"], DRAFTED["draft"] | {"drafted": 0}, None):
            policy = DRAFTED["policy"] | {"forecast_tokens_per_s": found, "most_gain": most}
            said = lines({"policy": policy, "generation": DRAFTED["generation"] | two, "draft": draft})
            assert max(map(len, said)) <= 80, said


# Runs


@pytest.fixture
def demo(kin: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo pair of tiny models."""
    monkeypatch.setattr("duo.loading.demo_pair", lambda *_, **__: (kin["llama"], kin["llama"]))


def heads(said: str) -> list[str]:
    return [re.split(" {2,}|(?<=:) ", line)[0] for line in said.splitlines()][-5:]


COMPARED = ["duo", "target alone", "duo chose", "because", "tokens:"]
USUAL = ["speed", "draft", "gain", "memory", "tokens:"]


@pytest.mark.usefixtures("demo")
def test_the_demo_is_compared_with_the_target_alone(kin: dict[str, Path]) -> None:
    text = duo(*DEMO, "-m", kin["llama"]).stdout
    run = duo(*DEMO)
    assert (run.status, run.stdout, run.n_tokens, heads(run.stderr)) == (0, text, 24, COMPARED)
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
    assert heads(duo(*DEMO, "-m", kin["llama"], "-md", kin["llama"]).stderr) == USUAL
    for options in (("--json", tmp_path / "run.json"), ("--schedule", "sync"), ("-n", "1")):
        assert heads(duo(*DEMO, *options).stderr) == USUAL, options
    assert "target alone  " not in duo(*DEMO, "-v").stderr + duo(*DEMO, "--draft", "0").stderr


@pytest.mark.usefixtures("demo")
def test_nothing_is_learned_or_traced_in_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second text has no draft, and the prompt is decoded again: as long as the first, and nothing is kept."""
    events: list[str] = []
    forget, learn, save = Slot.forget, Policy.learn_step, Profile.save

    def record(name: str, then: Any) -> Any:
        def recorded(*arguments: Any) -> Any:
            events.append(name)
            return then(*arguments)

        return recorded

    monkeypatch.setattr(Slot, "forget", record("forget", forget))
    monkeypatch.setattr(Policy, "learn_step", record("learn", learn))
    monkeypatch.setattr(Profile, "save", record("save", save))
    trace = tmp_path / "run.trace"
    assert heads(duo(*DEMO, "--trace", trace).stderr) == COMPARED
    assert "learn" in events
    assert events[events.index("forget") :] == ["forget", "save", "save"], "the profiles of the pair and of the target"
    assert sum(map(int, re.findall(r'"commit".*"tokens": ?(\d+)', trace.read_text()))) == 24


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_leaves_out_the_comparison(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, begun: bool) -> None:
    """Before there is a stream to stop, or when the text is whole, which is not known yet."""
    call, completion = Engine.call, Stream.completion
    streams: list[Stream] = []

    def interrupt() -> None:
        watcher = next(thread for thread in threading.enumerate() if thread.name == "duo-signals")
        os.kill(os.getpid(), number)  # from the main thread, which therefore handles it at once
        watcher.join()

    def before(self: Engine, work: Any) -> None:
        call(self, work)
        interrupt()

    def after(self: Stream) -> Completion:
        streams.append(self)
        found = completion(self)
        if begun:
            interrupt()
        return found

    if not begun:
        monkeypatch.setattr(Engine, "call", before)
    monkeypatch.setattr(Stream, "completion", after)
    run = duo(*DEMO)
    assert (run.status, run.n_tokens, heads(run.stderr)) == (128 + number, 24, USUAL)
    assert "stopped: token limit" in run.stderr, "the text is whole"
    assert [stream.request.metrics.stop for stream in streams] == ["token limit" if begun else "interrupted"]


@pytest.mark.usefixtures("demo")
def test_a_comparison_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Slot.write

    def fail(self: Slot, request: TextRequest, drafts: Drafts | None = None) -> None:
        if drafts is not None:
            raise DecodeError("lost")
        write(self, request, drafts)

    monkeypatch.setattr(Slot, "write", fail)
    run = duo(*DEMO)
    assert (run.status, run.n_tokens, heads(run.stderr)) == (0, 24, USUAL)
