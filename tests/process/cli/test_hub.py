"""-hf and -hfd, with huggingface_hub's environment variables, from a local hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH, assert_refused, duo
from tests.gguf_files import tiny_llama
from tests.process.cli.terminal import Terminal
from tests.unit.cli import runner
from tests.unit.models.fake_hub import FakeRepo, fake_hub

pytest.importorskip("huggingface_hub")

TEXT = ("-p", "the cat", "-n", "4", "--color", "never", *ONE_EACH)
PAIR = ("-hf", "maker/tiny:F32", "-hfd", "maker/split")


def test_models_from_the_hub(tiny: Path, tmp_path: Path) -> None:
    parts = tiny_llama(tmp_path / "split.gguf", max_tensors=4).parent.glob("split-*.gguf")
    repos = {
        "maker/tiny": FakeRepo({"tiny-F32.gguf": tiny.read_bytes()}),
        "maker/split": FakeRepo({part.name: part.read_bytes() for part in parts}),
    }
    plain = runner.duo("-m", tiny, *TEXT).stdout
    with fake_hub(repos) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        with Terminal(*PAIR, *TEXT, stderr_too=True, env=env, size=(100, 24)) as terminal:
            assert terminal.finish() == 0
        assert b"100%" in terminal.shown, "progress is shown on a terminal"
        assert plain in terminal.shown
        hub.asked.clear()
        cached = duo(*PAIR[:2], "--offline", *TEXT, env=env)
        assert (cached.status, cached.stdout, cached.warnings, hub.asked) == (0, plain, [], [])
        hub.status = 503
        again = duo(*PAIR[:2], *TEXT, env=env)
        (warning,) = again.warnings
        assert "503; using maker/tiny:F32 from the cache" in warning
        assert again.stdout == plain
        assert_refused(duo("-hf", "maker/other", "--offline", *TEXT, env=env), "offline")
