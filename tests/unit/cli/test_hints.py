"""Lines about what may be unintended in a run: an unusual draft, a raw prompt, an empty answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH
from tests.gguf_files import tiny_llama
from tests.unit.cli.runner import duo

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
RAW = "duo: this model has a chat template: --chat uses it"
SHORT = ("-n", "4", "--ignore-eos", *ONE_EACH)


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "instruct.gguf", add_bos=True, chat_template=TEMPLATE)


def hints(*arguments: str | Path) -> list[str]:
    run = duo(*arguments)
    assert run.status == 0, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith("duo: ")]


def test_a_raw_prompt_without_the_template_of_the_model(instruct: Path, tiny: Path) -> None:
    assert hints("-m", instruct, "-p", "the cat", *SHORT) == [RAW]
    assert hints("-m", tiny, "-p", "the cat", *SHORT) == []
    for others in (
        ("-p", "the cat", "--chat"),
        ("-p", "the cat", "-sys", "a"),
        ("-p", "the cat", "-no-cnv"),
        ("-p", "<s>the cat</s>b"),
    ):
        assert hints("-m", instruct, *others, *SHORT) == []


def test_a_draft_that_is_not_smaller(tiny: Path, tmp_path: Path) -> None:
    large, link = tiny_llama(tmp_path / "large.gguf", padding=100), tmp_path / "link.gguf"
    link.symlink_to(tiny)
    for same in (tiny, link):
        (said,) = hints("-m", tiny, "-md", same, "-p", "the cat", *SHORT)
        assert said.startswith("duo: the draft is the same file as the target")
    (said,) = hints("-m", tiny, "-md", large, "-p", "the cat", *SHORT)
    assert said.startswith("duo: the draft is not smaller than the target")
    assert said.endswith("are -m and -md exchanged?")
    assert hints("-m", large, "-md", tiny, "-p", "the cat", *SHORT) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-n", "0"), "-n 0 only processes the prompt"),
        (("-n", "4", "-l", "2+1000"), "the model ended the text at once (--ignore-eos continues)"),
        (("-n", "4", "-l", "259+1000", "-r", " the"), "it began with a stop string (-r)"),
        (("-n", "2", "-l", "1+1000"), "its 2 tokens have no text"),
        (("-n", "1", "-l", "1+1000"), "its only token has no text"),
    ],
)
def test_an_empty_answer_says_why(tiny: Path, options: tuple[str, ...], reason: str) -> None:
    run = duo("-m", tiny, "-p", "the cat", *options, *ONE_EACH)
    assert (run.status, run.stdout) == (0, b"")
    assert f"duo: the answer is empty: {reason}" in run.stderr.splitlines()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "there is no draft in this process"),
        (("-md", "{recurrent}"), "one of these models cannot roll back its cache"),
        (("-md", "{another}"), "the draft has another vocabulary"),
        (("-md", "{small}", "--schedule", "sync"), "there are none with --schedule sync"),
        (("-md", "{small}", "--schedule", "off"), "there are none with --schedule off"),
        (("-md", "{small}", "--verify", "rejection", "--temp", "1"), "there are none with --verify rejection"),
    ],
)
def test_branches_that_are_impossible(
    tiny: Path, recurrent: Path, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    models = {"recurrent": recurrent, "another": tmp_path / "another.gguf", "small": tiny}
    tiny_llama(models["another"], words=("a", "b"))
    large = tiny_llama(tmp_path / "large.gguf", padding=100)
    run: tuple[str | Path, ...] = (
        "-m",
        large,
        *(option.format(**models) for option in options),
        "-p",
        "the cat",
        *SHORT,
    )
    said = [line for line in hints(*run, "--branches", "2") if "--branches" in line]
    assert said == [f"duo: warning: --branches 2 has no effect: {reason}"]
    for branches in ("0", "auto"):
        assert not [line for line in hints(*run, "--branches", branches) if "--branches" in line]
