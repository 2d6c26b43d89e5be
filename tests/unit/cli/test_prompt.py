"""Prompts: sources, escapes, errors; and lines about what may be unintended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duo.cli.inputs import read_prompt
from tests.command import ONE_EACH, assert_refused
from tests.gguf_files import N_CTX_TRAIN, tiny_llama
from tests.unit.cli.runner import duo


@pytest.mark.parametrize(("content", "prompt"), [("a b", "a b"), ("a b\n", "a b"), ("a b\n\n", "a b\n"), ("é", "é")])
def test_one_newline_at_the_end_of_a_file_is_dropped(tiny: Path, tmp_path: Path, content: str, prompt: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(content.encode())
    assert read_prompt(None, str(path), escape=True) == prompt
    run = duo("-m", tiny, "-f", "-", "-n", "0", "--display-prompt", stdin=content.encode())
    assert run.text == prompt


def test_escapes(tmp_path: Path) -> None:
    written = r"a\nb\tc\"d\'e\\n \x41\xe2\x82\xac \q \x4 \e" + "\\"
    meant = "a\nb\tc\"d'e\\n A€ \\q \\x4 \\e\\"
    path = tmp_path / "prompt.txt"
    path.write_text(written)
    for source in ((written, None), (None, str(path))):
        assert read_prompt(*source, escape=True) == meant
        assert read_prompt(*source, escape=False) == written
    assert read_prompt("a b\n", None, escape=True) == "a b\n"
    assert read_prompt(None, None, escape=True) is None


def test_a_prompt_that_cannot_be_read(tmp_path: Path) -> None:
    path, missing = tmp_path / "prompt.txt", tmp_path / "missing.txt"
    path.write_text("\n")
    model = ("-m", "missing.gguf")
    assert_refused(duo(*model, "-f", path), f"{path} is empty")
    assert_refused(duo(*model, "-f", "-", stdin=b"\n"), "standard input is empty")
    for option in ("-f", "--grammar-file", "-jf"):
        prompt = () if option == "-f" else ("-p", "x")
        assert_refused(duo(*model, *prompt, option, missing), f"{missing}: No such file or directory")
        assert_refused(duo(*model, *prompt, option, tmp_path), f"{tmp_path}: Is a directory")


@pytest.mark.parametrize("escape", ["--escape", "--no-escape"])
def test_invalid_utf_8(tiny: Path, tmp_path: Path, escape: str) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"one\\n two \xff")
    said, model = "is not valid UTF-8: byte 0xff at offset", ("-m", "missing.gguf", escape)
    assert_refused(duo(*model, "-f", path), f"{path} {said} 10")
    assert_refused(duo(*model, "-f", "-", stdin=b"\xff"), f"standard input {said} 0")
    assert_refused(duo(*model, "-p", b"two \xff"), f"the prompt {said} 4")
    assert_refused(duo(*model, "-p", "x", "-r", b"\xff"), f"-r {said} 0")
    assert_refused(duo(*model, "-p", "x", "--grammar", b'root ::= "\xff"'), f"--grammar {said} 10")
    assert_refused(duo("-m", tiny, "-p", "x", "-sys", b"\xff"), f"-sys {said} 0")


def test_a_prompt_as_long_as_the_context_and_longer(tiny: Path) -> None:
    prompt = ("-m", tiny, "-p", "the cat sat " * 60, "-n", "0", "-t", "1")
    run = duo(*prompt, "-n", "-1")
    n_tokens = int(re.findall(r"the prompt has (\d+) tokens", run.stderr)[0])
    assert_refused(run, f"the context {N_CTX_TRAIN} ")
    assert_refused(duo(*prompt, "-c", str(n_tokens - 1)), f"has {n_tokens} tokens, the context {n_tokens - 1} ")
    assert duo(*prompt, "-c", str(n_tokens)).status == 0


def test_bos_is_added_once_and_only_where_the_vocabulary_asks_for_it(tmp_path: Path) -> None:
    found = []
    for add_bos in (False, True):
        model = tiny_llama(tmp_path / "model.gguf", add_bos=add_bos)
        for prompt in ("the cat", "<s>the cat"):
            run = duo("-m", model, "-p", prompt, "-n", "8", "--exact", "-t", "1")
            found.append((run.n_prompt, run.stdout))
    (n, plain), *others = found
    assert (others, others[0][0]) == (3 * [others[0]], n + 1)
    assert plain != others[0][1]


# Lines about what may be unintended in a run: an unusual draft, a raw prompt, an empty answer


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
