"""The laboratory, benchmarks/: that it runs. Its figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT, environment
from tests.gguf_files import tiny_llama


@pytest.mark.parametrize(
    ("arguments", "fails"),
    [
        (["link", "-n", "16", "-r", "1", "--only", "plain", "lead"], None),
        (["two-devices", "-n", "8", "-r", "1", "--machine", "FAR"], None),
        (["gpu", "-n", "8", "-r", "1"], None),
        (["compare", "--peers", "EMPTY"], 2),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_a_scenario_runs(tmp_path: Path, arguments: list[str], fails: int | None) -> None:
    """`fails`: its exit status; None: 0, or 1 if a bar is missed."""
    tiny = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02, chat_template="{{ messages[0].content }}")
    (tmp_path / "prompt.txt").write_text("the cat sat on the mat\n", encoding="utf-8")
    slow = {"target_ms": {"1": 60, "8": 80}, "draft_ms": 20, "apart": True}
    machine = {"name": "two machines", "pairs": {"far": slow | {"delay_ms": 5}}}
    (tmp_path / "FAR").write_text(json.dumps(machine), encoding="utf-8")
    words = [str(tmp_path / word) if word in ("FAR", "EMPTY") else word for word in arguments]
    command = [sys.executable, "-m", "benchmarks", *words, "--models", str(tiny), str(tiny),
               "--prompts", str(tmp_path / "prompt.txt"), "--json", str(tmp_path / "out.json")]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode in ((fails,) if fails is not None else (0, 1)), done.stderr
    if fails != 2:
        document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert document["pairs"]["tiny"].get("complete", True)
        assert "| " in done.stdout or "- " in done.stdout
    else:
        assert "has no llama-completion: build it with benchmarks/peers.sh" in done.stderr
