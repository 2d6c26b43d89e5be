"""The script that trains heads, as far as a few steps show. It needs PyTorch, which the tests' environment lacks."""

import json
import sys
import time
from pathlib import Path

import pytest

from duo import load
from tests.gguf_files import tiny_llama

pytest.importorskip("torch", reason="PyTorch is not installed")
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %} cat "


@pytest.mark.parametrize(("kind", "options"), [("eagle3", []), ("dflash", ["--layers", "2"]), ("dflash", ["--causal"])])
def test_a_head_of_a_few_steps(kind: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import train_head  # noqa: PLC0415

    def step(name: str, output: str, *more: object) -> Path:
        monkeypatch.setattr(sys, "argv", ["", name, str(target), str(tmp_path / output), *map(str, more)])
        monkeypatch.setattr(train_head, "began", time.monotonic())
        train_head.main()
        return tmp_path / output

    target = tiny_llama(tmp_path / "target.gguf", n_layer=6, depth=0.05, chat_template=TEMPLATE)
    questions = [{"question_id": i, "category": "c", "turns": [f"the cat sat on {i} "]} for i in range(4)]
    (tmp_path / "questions").write_text("\n".join(map(json.dumps, questions)))
    prompts = step("prompts", "prompts.json", "--questions", tmp_path / "questions")
    texts = step("write", "texts.npz", "--prompts", prompts, "--tokens", 200, "--length", 48)
    head = step(kind, "head.gguf", "--texts", texts, "--minutes", 0.05, "--vocabulary", 200, "--batch", 200, *options)
    with load(target, head, n_ctx=256, profile=False, schedule="sync", lookup="off") as engine:
        engine.generate("the cat sat on 0 cat ", max_tokens=64, ignore_eos=True, temperature=0.0)
        assert engine.statistics is not None
        assert engine.statistics.draft is not None
        assert engine.statistics.draft.accepted > 0
