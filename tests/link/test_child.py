"""A back that is a process of this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from duo.link.child import Child, own_command
from tests.command import ONE_EACH, SLOW_TARGET, duo, environment
from tests.serving import RpcServer, Served, send_to_children


def test_what_lies_in_the_current_folder_is_not_run(tmp_path: Path) -> None:
    for name in ("secrets", "socket", "duo"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('run from the current folder')")
    command = own_command("back", "--help")
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: duo back" in done.stdout


def test_one_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with Child("the draft", [], "token") as child:
        assert child.wait(60)
    assert "the draft: its process cannot be started: No such file" in caplog.text


def test_options_that_cannot_be_meant_are_for_the_user(demo_pair: tuple[Path, Path]) -> None:
    with Child("the draft", [f"--model={demo_pair[1]}", "--device=GPU99"], "token") as child:
        assert child.wait(60)
        assert child.usage_error is not None
        assert "-dev" in child.usage_error


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
