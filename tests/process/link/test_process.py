"""A remote draft that is a process of this machine."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import UsageError
from duo.link.process import DraftProcess
from duo.link.remote_drafts import RemoteDrafts
from tests.command import ONE_EACH, SLOW_TARGET, duo
from tests.gguf_files import tiny_mamba
from tests.serving import PATIENCE_S, RpcServer, Served, send_to_children


def process_of(model: ModelConfig) -> DraftProcess:
    return DraftProcess("the draft", model, ContextConfig(32, 1, 1), RemoteDrafts())


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def test_what_lies_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("secrets", "socket", "duo"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run from the current folder')")
    monkeypatch.chdir(tmp_path)
    with process_of(ModelConfig(tmp_path / "none.gguf")) as process:
        process.start(None)
        wait_until(lambda: "the draft: " in caplog.text)
    assert "run from the current folder" not in caplog.text
    assert "none.gguf" in caplog.text


def test_one_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with process_of(ModelConfig(Path("none.gguf"))) as process:
        process.start(None)
        wait_until(lambda: "the draft: its process cannot be started: No such file" in caplog.text)


def test_a_config_that_cannot_be_meant_is_for_the_user(demo_pair: tuple[Path, Path]) -> None:
    with (
        process_of(ModelConfig(demo_pair[1], devices=("GPU99",))) as process,
        pytest.raises(UsageError, match=r"the draft: .*GPU99"),
    ):
        process.start(None)


def test_a_model_that_cannot_draft_is_for_the_user(tmp_path: Path) -> None:
    model = tiny_mamba(tmp_path / "recurrent.gguf")
    with (
        process_of(ModelConfig(model, n_gpu_layers=0)) as process,
        pytest.raises(UsageError, match=r"recurrent\.gguf cannot roll back its cache, so it cannot draft"),
    ):
        process.start(None)


def test_who_is_to_stop_does_not_wait_for_it(
    demo_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duo.link.process._PATIENCE_S", math.inf)
    caplog.set_level(logging.INFO, "duo")
    stop = threading.Event()
    stop.set()
    with process_of(ModelConfig(demo_pair[1])) as process:
        process.start(stop)
        assert "the draft is still loading: the target begins alone" in caplog.text


def test_one_that_is_killed_is_started_again_and_the_text_is_the_same(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    prompt = ("-p", "def fibonacci(n):\n    ", "-n", "48", "--ignore-eos", "--exact", *ONE_EACH)
    with RpcServer() as server:
        options = ("-m", target, "-md", draft, *prompt, "--schedule", "async", "--rpc", server.name)
        with Served(*options, before=SLOW_TARGET.replace("0.05", "0.2")) as run:
            while len(run.stdout) < 20:
                time.sleep(0.01)
            send_to_children(run.process.pid, signal.SIGKILL)
            run.wait_for("the target goes on alone while it is tried again")
            run.wait_for("it is back")
            assert run.finish() == 0
    assert run.stdout == duo("-m", target, *prompt).stdout
