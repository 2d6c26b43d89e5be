"""A remote draft in another process: the lead's own worker, and one of a run."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import UsageError
from duo.llama.library import supports_rpc
from duo.remote.drafts import RemoteDrafts
from duo.remote.process import OwnWorker, WorkerPlan
from tests.command import ONE_EACH, PATIENT, SLOW_TARGET, gated_target
from tests.gguf_files import tiny_llama, tiny_mamba
from tests.serving import BackProcess, RpcServer, Served, wait_until
from tests.unit.cli import runner

needs_rpc = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
WORDS = "th ca sa on ma an do ra t e s d g n"
TEXT = ("-p", "the cat sat on", "-n", "64", "--ignore-eos", "--exact", "--schedule", "async", *ONE_EACH)


def worker_of(model: Path, **options: Any) -> OwnWorker:
    plan = WorkerPlan("", ModelConfig(model, **options), ContextConfig(32, 1, 1))
    return OwnWorker("the draft", plan, RemoteDrafts())


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (("GPU99",), r"^the draft: devices: unknown device GPU99"),
        ((), r"^the draft: recurrent\.gguf cannot roll back its cache"),
    ],
)
def test_options_that_the_process_rejects_raise_usage_errors(
    tmp_path: Path, devices: tuple[str, ...], said: str
) -> None:
    model = tiny_mamba(tmp_path / "recurrent.gguf")
    with worker_of(model, n_gpu_layers=0, devices=devices) as worker, pytest.raises(UsageError, match=said):
        worker.start(None)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no room' >&2; exit 3", "no room"),
        ("exit 3", "its process exited with status 3"),
        ("echo '[40, \"no luck\"]'; echo bye; exit 1", "no luck"),
    ],
)
def test_why_the_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: str, reason: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))  # run in place of Python
    with worker_of(Path("none.gguf")) as worker:
        worker.start(None)
        wait_until(lambda: f"the draft: {reason}; the target continues alone" in caplog.text)


@needs_rpc
def test_a_process_that_is_killed_is_restarted_and_the_text_is_the_same(tmp_path: Path) -> None:
    target, draft = tiny_llama(tmp_path / "target.gguf", depth=0.05), tiny_llama(tmp_path / "draft.gguf", depth=0.02)
    with RpcServer() as server:
        # Without a lookup: a tiny model repeats itself, and the text could end before the process has restarted.
        options = ("-m", target, "-md", draft, *TEXT, "-n", "400", "--lookup", "off", "--rpc", server.name)
        with Served(*options, before="from tests.child import slow_target; slow_target(seconds=0.2)") as run:
            wait_until(lambda: len(run.stdout) > 20)
            run.send_to_children(signal.SIGKILL)
            run.wait_for("its process exited with status -9; the target continues alone until the draft has restarted")
            run.wait_for("connected again")
            run.send(signal.SIGINT)
            assert run.finish() == 130
    plain = runner.duo("-m", target, *TEXT, "-n", "400")
    assert plain.status == 0, plain.stderr
    assert plain.stdout.startswith(run.stdout.rstrip(b"\n"))


@pytest.fixture
def other_pair(tmp_path: Path) -> tuple[Path, Path]:
    """A target, and a draft with another vocabulary."""
    words = tuple(f"▁{word}" for word in WORDS.split())
    return tiny_llama(tmp_path / "target.gguf"), tiny_llama(tmp_path / "m\udcff.gguf", words=words, add_bos=True)


@needs_rpc
def test_a_process_drafts_in_another_vocabulary(other_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = other_pair
    report = tmp_path / "report.json"
    with RpcServer() as server:
        options = ("-m", target, "-md", draft, *TEXT, "--rpc", server.name, "--json", report)
        with Served(*options, before=PATIENT + SLOW_TARGET) as run:
            assert run.finish() == 0
    assert run.stdout == runner.duo("-m", target, *TEXT).stdout
    found = json.loads(report.read_text())["draft"]
    assert (found["vocabulary"], found["drafted"] > 0) == ("translated", True)


def test_a_worker_of_a_run_needs_the_vocabulary_of_the_target(other_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = other_pair
    plain, report = runner.duo("-m", target, *TEXT), tmp_path / "report.json"
    options = ("-m", target, *TEXT, "--back-port", "0", "--back-host", "0.0.0.0", "--back-token", "secret")
    with Served(*options, "--json", report, before=gated_target(tmp_path / "gate")) as run:
        port = int(run.wait_for(r"at ws://\S+:(\d+)")[1])
        with BackProcess(draft, port, "--token", "secret") as refused:
            refused.wait_for("start it with --vocab and a GGUF file that has the target's vocabulary")
            assert refused.finish() == 1
        with BackProcess(draft, port, "--token", "secret", "--vocab", target) as worker:
            worker.wait_for("connected to the lead")
            (tmp_path / "gate").touch()
            run.wait_for("draft .* is in use")
            assert run.finish() == 0
            worker.wait_for("the lead disconnected")
    assert run.stdout == plain.stdout
    document = json.loads(report.read_text())
    assert (document["draft"]["vocabulary"], document["draft"]["drafted"] > 0) == (None, True), "a worker does not say"
    assert document["policy"]["latency_ms"] >= 0
    alone = runner.duo(*options)
    assert (alone.status, alone.stdout) == (0, plain.stdout), "without a worker it is a plain run"
