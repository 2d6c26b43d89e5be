"""Lines about what may be unintended in a run: an unusual draft, a raw prompt, an empty answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH
from tests.gguf_files import tiny_llama
from tests.unit.cli.runner import duo

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
RAW = "duo: this model has a chat template: --chat uses it"
SHORT = ("-p", "the cat", "-n", "4", "--ignore-eos", *ONE_EACH)


def hints(*arguments: str | Path) -> list[str]:
    run = duo(*arguments)
    assert run.status == 0, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith("duo: ")]


def test_a_raw_prompt_without_the_template_of_the_model(tiny: Path, tmp_path: Path) -> None:
    instruct = tiny_llama(tmp_path / "instruct.gguf", add_bos=True, chat_template=TEMPLATE)
    assert hints("-m", instruct, *SHORT) == [RAW]
    assert hints("-m", tiny, *SHORT) == []
    for others in (["--chat"], ["-sys", "a"], ["-no-cnv"], ["-p", "<s>the cat</s>b"]):
        assert hints("-m", instruct, *SHORT, *others) == []


def test_a_draft_that_is_not_smaller(tiny: Path, tmp_path: Path) -> None:
    large = tiny_llama(tmp_path / "large.gguf", padding=100)
    for draft in (tiny, large):
        (said,) = hints("-m", tiny, "-md", draft, *SHORT)
        assert said.startswith("duo: the draft is not smaller than the target")
    assert hints("-m", large, "-md", tiny, *SHORT) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("-n 0", "-n 0 only processes the prompt"),
        ("-n 4 -l 2+1000", "the model ended the text at once (--ignore-eos continues)"),
        ("-n 4 -l 259+1000 -r a", "it began with a stop string (-r)"),
        ("-n 2 -l 1+1000", "its tokens have no text"),
    ],
)
def test_an_empty_answer_says_why(tiny: Path, options: str, reason: str) -> None:
    words = [" the" if word == "a" else word for word in options.split()]
    run = duo("-m", tiny, "-p", "the cat", *words, *ONE_EACH)
    assert (run.status, run.stdout) == (0, b"")
    assert f"duo: the answer is empty: {reason}" in run.stderr.splitlines()


@pytest.mark.parametrize(
    "options",
    ["", "-md {recurrent}", "-md {another}", "-md {small} --schedule sync", "-md {small} --verify rejection --temp 1"],
)
def test_branches_that_are_impossible(tiny: Path, recurrent: Path, tmp_path: Path, options: str) -> None:
    models = {"recurrent": recurrent, "another": tiny_llama(tmp_path / "a.gguf", words=("a", "b")), "small": tiny}
    large = tiny_llama(tmp_path / "large.gguf", padding=100)
    run: list[str | Path] = ["-m", large, *options.format(**models).split(), *SHORT]
    for branches, n_said in (("2", 1), ("auto", 0)):
        said = [line for line in hints(*run, "--branches", branches) if "--branches" in line]
        assert len(said) == n_said
        assert all(line.startswith("duo: warning: --branches 2 has no effect: ") for line in said)
