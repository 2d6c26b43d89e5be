"""`duo --back-port`: the plain command takes drafts from other machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import SLOW_TARGET, duo
from tests.serving import BackProcess, Served

PROMPT = ("-p", "def fibonacci(n):\n    ", "-n", "48", "--ignore-eos", "--exact", "-t", "1", "--schedule", "async")

# The text begins only when a back is there.
WAIT_FOR_BACK = """
import time
from duo.link.remote_drafts import RemoteDrafts
begin = RemoteDrafts.begin
def patiently(self):
    while not self.n_connected:
        time.sleep(0.01)
    begin(self)
RemoteDrafts.begin = patiently
"""


def test_the_text_is_the_same_and_a_back_has_helped(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    plain = duo("-m", target, *PROMPT)
    assert plain.status == 0
    report = tmp_path / "run.json"
    options = ("-m", target, *PROMPT, "--back-port", "0", "--json", report)
    with Served(*options, before=SLOW_TARGET + WAIT_FOR_BACK) as run:
        port = int(run.wait_for(r"taking drafts at ws://127\.0\.0\.1:(\d+)")[1])
        with BackProcess(draft, port) as back:
            back.wait_for("joined the lead")
            assert run.finish() == 0
            back.wait_for("the lead has gone")
        assert run.stdout == plain.stdout
    statistics = json.loads(report.read_text())
    assert statistics["draft"]["accepted"] > 0
    assert statistics["policy"]["latency_ms"] >= 0


def test_without_a_back_it_is_a_plain_run(demo_pair: tuple[Path, Path]) -> None:
    plain = duo("-m", demo_pair[0], *PROMPT)
    run = duo("-m", demo_pair[0], *PROMPT, "--back-port", "0")
    assert (run.status, run.stdout) == (0, plain.stdout)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--back-host", "0.0.0.0"), "--back-token"),
        (("--verify", "rejection", "--temp", "1"), "--verify rejection"),
        (("--back-token", ""), "must not be empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(demo_pair: tuple[Path, Path], options: tuple[str, ...], why: str) -> None:
    run = duo("-m", demo_pair[0], *PROMPT, "--back-port", "0", *options)
    assert run.status == 2
    assert why in run.stderr
    assert len(run.stderr.splitlines()) == 1
