"""The pairs of models and their prompts. No model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import PROMPTS
from benchmarks.models import PAIRS, REPEAT_TINYLLAMA, prompt_files


def test_prompts_of_several_folders_alternate(tmp_path: Path) -> None:
    for name in ("a/1", "a/2", "a/3", "b/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").touch()
    assert [path.stem for path in prompt_files([tmp_path / "a", tmp_path / "b"])] == ["1", "x", "2", "3"]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_prompts_of_a_pair(pair: str) -> None:
    """Each prompt is a category, named by its file, in the chat format of the target if it has one."""
    files = prompt_files(PAIRS[pair][2])
    assert len({path.stem for path in files}) == len(files) >= 4
    foreign = "<|im_start|>" if pair.startswith("tinyllama") else "<|user|>"
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert foreign not in text, path
        assert text.endswith("\n"), path


def test_the_prompts_that_are_repeated_are_the_same_tasks_for_both_models() -> None:
    tasks = [[path.name for path in prompt_files([folder])] for folder in (PROMPTS / "repeat", REPEAT_TINYLLAMA)]
    assert tasks[0] == tasks[1]
    assert len(tasks[0]) == 8
