"""-hf and -hfd, from a hub of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH, Run, assert_refused, duo
from tests.gguf_files import tiny_llama
from tests.unit.models.fake_hub import FakeRepo, fake_hub

pytest.importorskip("huggingface_hub")


def test_models_from_the_hub(tiny: Path, tmp_path: Path) -> None:
    parts = tiny_llama(tmp_path / "split.gguf", max_tensors=4).parent.glob("split-*.gguf")
    repos = {
        "maker/tiny": FakeRepo({"tiny-F32.gguf": tiny.read_bytes()}),
        "maker/split": FakeRepo({part.name: part.read_bytes() for part in parts}),
    }
    with fake_hub(repos) as hub:

        def run(*arguments: str) -> Run:
            env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
            return duo(*arguments, "-p", "the cat", "-n", "4", *ONE_EACH, env=env)

        plain = duo("-m", tiny, "-p", "the cat", "-n", "4", *ONE_EACH).stdout
        fetched = run("-hf", "maker/tiny:F32", "-hfd", "maker/split")
        assert (fetched.status, fetched.stdout, fetched.warnings) == (0, plain, [])
        assert run("-hf", "maker/tiny:F32", "--offline").stdout == plain

        assert_refused(run("-hf", "maker/other"), "has no maker/other")
        assert_refused(run("-hf", "maker/other", "--offline"), "offline")
        assert_refused(run("-hf", "tiny"), status=2)

        hub.status = 503
        again = run("-hf", "maker/tiny:F32")
        assert (again.status, again.stdout) == (0, plain)
        (warning,) = again.warnings
        assert "answered 503; taking maker/tiny:F32 from the cache" in warning
