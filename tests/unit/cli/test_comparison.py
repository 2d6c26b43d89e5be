"""The demo: its comparison with the target alone changes nothing else."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from duo.engine.engine import Engine
from duo.engine.stream import Stream
from tests.command import ONE_EACH
from tests.unit.cli.runner import duo

DEMO = ("-m", "demo", "-p", "the cat", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)


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
    assert (run.status, run.n_tokens, heads(run.stderr)) == (130, 24, USUAL)
    assert "stopped: token limit" in run.stderr, "the text is whole"
