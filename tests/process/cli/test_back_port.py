"""`duo --back-port`: a run with a remote draft."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command import SLOW_TARGET
from tests.serving import BackProcess, Served
from tests.unit.cli import runner

TEXT = ("-p", "the cat sat on the mat and", "-n", "48", "--ignore-eos", "--exact", "-t", "1", "--schedule", "async")

# Code for `before`: the text begins when a back has connected.
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


def test_the_text_is_the_same_and_candidates_are_accepted(kin: dict[str, Path], tmp_path: Path) -> None:
    plain, report = runner.duo("-m", kin["lfm2"], *TEXT), tmp_path / "run.json"
    options = ("-m", kin["lfm2"], *TEXT, "--back-port", "0", "--json", report)
    with Served(*options, before=SLOW_TARGET + WAIT_FOR_BACK) as run:
        port = int(run.wait_for(r"at ws://127\.0\.0\.1:(\d+)")[1])
        with BackProcess(kin["llama"], port) as back:
            back.wait_for("connected to the lead")
            assert run.finish() == 0
            back.wait_for("the lead disconnected")
    assert run.stdout == plain.stdout
    statistics = json.loads(report.read_text())
    assert statistics["draft"]["accepted"] > 0
    assert statistics["policy"]["latency_ms"] >= 0
    alone = runner.duo("-m", kin["lfm2"], *TEXT, "--back-port", "0")
    assert (alone.status, alone.stdout) == (0, plain.stdout), "without a back it is a plain run"
