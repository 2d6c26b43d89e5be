"""DraftProcess: a remote draft in a separate process on this machine."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import threading
from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import UsageError
from duo.link.process import DraftProcess
from duo.link.remote_drafts import RemoteDrafts
from duo.llama.library import supports_rpc
from tests.command import ONE_EACH, SLOW_TARGET, gated_target
from tests.gguf_files import tiny_llama, tiny_mamba
from tests.serving import RpcServer, Served, send_to_children, wait_until
from tests.unit.cli import runner


def process_of(model: ModelConfig) -> DraftProcess:
    return DraftProcess("the draft", model, ContextConfig(32, 1, 1), RemoteDrafts())


def test_modules_in_the_current_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("secrets", "socket", "duo"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current directory')")
    monkeypatch.chdir(tmp_path)
    with process_of(ModelConfig(tmp_path / "none.gguf")) as process:
        process.start(None)
        wait_until(lambda: "the draft: " in caplog.text)
    assert "imported from the current directory" not in caplog.text
    assert "none.gguf" in caplog.text


@pytest.mark.parametrize(
    ("devices", "said"), [(("GPU99",), r"the draft: .*GPU99"), ((), r"recurrent\.gguf cannot roll back its cache")]
)
def test_options_that_the_process_rejects_raise_usage_errors(
    tmp_path: Path, devices: tuple[str, ...], said: str
) -> None:
    model = tiny_mamba(tmp_path / "recurrent.gguf")
    with (
        process_of(ModelConfig(model, n_gpu_layers=0, devices=devices)) as process,
        pytest.raises(UsageError, match=said),
    ):
        process.start(None)


def test_a_stop_ends_the_wait_for_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duo.link.process._PATIENCE_S", math.inf)
    caplog.set_level(logging.INFO, "duo")
    stop = threading.Event()
    stop.set()
    with process_of(ModelConfig(tiny_llama(tmp_path / "draft.gguf"))) as process:
        process.start(stop)
        assert "the draft is still loading: the target starts alone" in caplog.text


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, to be written, that is run in place of Python."""
    file = tmp_path / "program"
    file.touch(mode=0o700)
    monkeypatch.setattr(sys, "executable", str(file))
    return file


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no room' >&2; exit 3", "no room"),
        ("exit 3", "its process exited with status 3"),
        ('echo \'{"type":"Failed","message":"no luck"}\'; echo bye; exit 1', "no luck"),
    ],
)
def test_why_the_process_ended(program: Path, caplog: pytest.LogCaptureFixture, script: str, reason: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    with process_of(ModelConfig(Path("none.gguf"))) as process:
        process.start(None)
        wait_until(lambda: f"the draft: {reason}; the target continues alone" in caplog.text)


@pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
def test_a_process_that_is_killed_is_restarted_and_the_text_is_the_same(tmp_path: Path) -> None:
    target, draft = tiny_llama(tmp_path / "target.gguf", depth=0.05), tiny_llama(tmp_path / "draft.gguf", depth=0.02)
    prompt = ("-p", "the cat sat on", "-n", "400", "--ignore-eos", "--exact", *ONE_EACH)
    with RpcServer() as server:
        options = ("-m", target, "-md", draft, *prompt, "--schedule", "async", "--rpc", server.name)
        with Served(*options, before="from tests.child import slow_target; slow_target(seconds=0.2)") as run:
            wait_until(lambda: len(run.stdout) > 20)
            send_to_children(run.process.pid, signal.SIGKILL)
            run.wait_for("its process exited with status -9; the target continues alone until the draft has restarted")
            run.wait_for("connected again")
            run.send(signal.SIGINT)
            assert run.finish() == 130
    plain = runner.duo("-m", target, *prompt)
    assert plain.status == 0, plain.stderr
    assert plain.stdout.startswith(run.stdout.rstrip(b"\n"))


OTHER_WORDS = tuple(
    f"▁{word}" for word in ("th", "ca", "sa", "on", "ma", "an", "do", "ra", "t", "e", "s", "d", "g", "n")
)


def other_pair(folder: Path) -> tuple[Path, Path]:
    """A target, and a draft with another vocabulary."""
    return tiny_llama(folder / "target.gguf"), tiny_llama(folder / "draft.gguf", words=OTHER_WORDS, add_bos=True)


TEXT = ("-p", "the cat sat on", "-n", "64", "--ignore-eos", "--exact", "--schedule", "async", *ONE_EACH)


@pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
def test_a_process_drafts_in_another_vocabulary(tmp_path: Path) -> None:
    target, draft = other_pair(tmp_path)
    report = tmp_path / "report.json"
    with RpcServer() as server:
        options = ("-m", target, "-md", draft, *TEXT, "--rpc", server.name, "--json", report)
        with Served(*options, before=SLOW_TARGET) as run:
            assert run.finish() == 0
    assert run.stdout == runner.duo("-m", target, *TEXT).stdout
    found = json.loads(report.read_text())["draft"]
    assert (found["vocabulary"], found["drafted"] > 0) == ("translated", True)


def test_a_back_with_the_vocabulary_of_the_target(tmp_path: Path) -> None:
    target, draft = other_pair(tmp_path)
    report = tmp_path / "report.json"
    options = ("-m", target, *TEXT, "--back-port", "0", "--json", report)
    with Served(*options, before=gated_target(tmp_path / "gate")) as run:
        port = run.wait_for(r"at ws://[\d.]+:(\d+)")[1]
        back_options = ("back", "-m", draft, "--lead", f"ws://127.0.0.1:{port}", "-t", "1")
        with Served(*back_options) as refused:
            refused.wait_for("start it with --vocab and a GGUF file that has the target's vocabulary")
            assert refused.finish() == 1
        with Served(*back_options, "--vocab", target) as back:
            back.wait_for("connected to the lead")
            (tmp_path / "gate").touch()
            run.wait_for("draft .* is in use")
            assert run.finish() == 0
    assert run.stdout == runner.duo("-m", target, *TEXT).stdout
    found = json.loads(report.read_text())["draft"]
    assert (found["vocabulary"], found["drafted"] > 0) == (None, True), "a back does not say"
