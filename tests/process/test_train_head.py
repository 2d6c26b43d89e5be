"""The script that trains a head, as far as a few steps show. It needs PyTorch, which the tests' environment lacks."""

import sys
from pathlib import Path

import pytest

from duo import load
from tests.command import run

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_a_head_of_a_few_steps(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "head.gguf"
    few = ("--tokens", "8192", "--batch", "16", "--steps", "50")
    found = run(sys.executable, "-m", "benchmarks.train_head", "--target", demo_pair[0], "--out", out, *few)
    assert found.status == 0, found.stderr
    assert "step 50/50" in found.text
    with load(demo_pair[0], out, n_ctx=512, profile=False, schedule="sync", lookup="off") as engine:
        engine.chat("Name a fruit.", max_tokens=64, ignore_eos=True, temperature=0.0)
        assert engine.statistics is not None
        assert engine.statistics.draft is not None
        assert engine.statistics.draft.accepted > 0
