"""Models whose logits are not numbers, as those of a broken file: a target is refused, a draft or a head left out."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

import duo
from duo.errors import ModelError
from tests.command import assert_refused
from tests.gguf_files import tiny_eagle3, tiny_glm, tiny_llama
from tests.unit.cli.runner import duo as run

NAN, INFINITE = float("nan"), float("inf")


def broken(path: Path, tensor: str = "output.weight", value: float = NAN) -> Path:
    """The file with one weight that is `value`."""
    reader = gguf.GGUFReader(path, "r+")
    data = next(each.data for each in reader.tensors if each.name == tensor)
    data.reshape(-1)[70] = np.float32(value)
    reader.data.flush()
    return path


@pytest.mark.parametrize("value", [NAN, INFINITE])
@pytest.mark.parametrize(
    "options",
    [
        ("--temp", "0"), ("--temp", "1"), ("--temp", "1", "--top-k", "1"), ("--temp", "1", "--min-p", "0.5"),
        ("--temp", "1", "--verify", "rejection"), ("--temp", "0", "--grammar", 'root ::= [a-z ]+'),
        ("--temp", "0", "--exact"), ("--temp", "0", "--lookup", "off"),
    ],
)  # fmt: skip
def test_a_target_is_refused_with_its_name(tmp_path: Path, options: tuple[str, ...], value: float) -> None:
    target = broken(tiny_llama(tmp_path / "target.gguf"), value=value)
    refused = run("-m", target, "-p", "the cat", "-n", "200", "--ignore-eos", *options)
    if value == INFINITE:  # the logit is minus infinity until it is plus infinity: what is written until then is kept
        refused = replace(refused, stdout=b"")
    assert_refused(refused, f"{target}: its logits are not numbers: the file is damaged, or does not fit llama.cpp\n")


def test_a_target_is_refused_by_the_library_in_the_middle_of_a_prompt_too(tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "target.gguf")
    broken(target, "token_embd.weight")  # of one token
    with duo.load(target, profile=False) as engine:
        assert engine.generate([5, 6], max_tokens=1).text
        with pytest.raises(ModelError, match="not numbers"):
            engine.generate([5, 1, 6], max_tokens=1)
        assert engine.generate([5, 6], max_tokens=1).text, "the next text is not affected"


@pytest.mark.parametrize("schedule", ["sync", "async", "auto"])
@pytest.mark.parametrize("kind", ["draft", "eagle3", "mtp"])
def test_a_draft_does_not_end_the_text(tmp_path: Path, schedule: str, kind: str) -> None:
    target, draft = tiny_llama(tmp_path / "target.gguf", n_layer=2), None
    if kind == "draft":
        draft = broken(tiny_llama(tmp_path / "draft.gguf"))
    elif kind == "eagle3":
        draft = broken(tiny_eagle3(tmp_path / "draft.gguf"), "blk.0.ffn_down.weight")
    else:
        target = broken(tiny_glm(tmp_path / "target.gguf"), "blk.2.nextn.eh_proj.weight")
    with duo.load(target, None, profile=False, exact=True, heads="off") as engine:
        expected = engine.generate("the cat sat", max_tokens=24, ignore_eos=True).text
    with duo.load(target, draft, profile=False, exact=True, schedule=schedule, lookup="off") as engine:
        found = engine.generate("the cat sat", max_tokens=24, ignore_eos=True)
    assert found.text == expected
    if schedule == "sync":  # else the text may have ended before
        assert found.statistics.draft is not None
        assert f"{draft or target}: its logits are not numbers" in (found.statistics.draft.error or "")
