"""What only a real model shows: its chat template, the end of its text, JSON; run in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, models
from tests.unit.cli.runner import duo

TEMPLATE = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def test_chat_templates(demo_pair: tuple[Path, Path]) -> None:
    def prompt(*arguments: Argument) -> str:
        run = duo("-m", demo_pair[0], *arguments, "-n", "0", "--display-prompt", "-t", "1")
        assert (run.status, run.n_tokens) == (0, 0)
        return run.text

    own = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert prompt("--chat", "-p", r"Hi\nyou") == TEMPLATE.format(own, "Hi\nyou")
    system = ("-sys", r"Be\nbrief.", "-p", "Hi")
    assert prompt(*system) == TEMPLATE.format("Be\nbrief.", "Hi")
    assert prompt("--chat", *system, "--no-escape") == TEMPLATE.format(r"Be\nbrief.", "Hi")


@pytest.mark.parametrize("drafted", [True, False])
def test_the_end_of_the_text(demo_pair: tuple[Path, Path], drafted: bool) -> None:
    target, draft = demo_pair
    arguments = (*models(target, draft if drafted else None), "--chat", "--exact", *ONE_EACH, "-n", "24")
    run = duo(*arguments, "-p", "What is 2+2? Answer with a number.")
    assert run.stopped == "end of text"
    assert run.n_tokens < 24
    assert "<|im_end|>" not in run.text
    on = duo(*arguments, "-p", "What is 2+2? Answer with a number.", "--ignore-eos")
    assert (on.stopped, on.n_tokens) == ("token limit", 24)
    assert on.text.startswith(run.text)
    assert len(on.text) > len(run.text)


def test_a_draft_with_another_kind_of_vocabulary(tiny: Path, demo_pair: tuple[Path, Path]) -> None:
    options = ("-m", demo_pair[0], "-p", "The sky is", "-n", "8", "--exact", *ONE_EACH, "--lookup", "off")
    run = duo(*options, "-md", tiny, "--schedule", "sync")
    assert (run.status, run.stdout) == (0, duo(*options).stdout)
    assert "vocabulary translated" in run.stderr


@pytest.mark.usefixtures("demo_pair")
def test_the_demo_rewrites_a_letter() -> None:
    run = duo("-m", "demo", "-n", "8", "--exact", "--display-prompt", *ONE_EACH)
    assert (run.status, run.n_tokens) == (0, 8)
    assert duo("demo", "-n", "2").n_tokens == 2
    said = run.stderr.splitlines()[:2]
    assert said[0] == "duo: using the demo pair, SmolLM2-135M-Instruct in F16 and Q4_0"
    assert said[1].startswith("duo: no prompt given (-p, -f): Rewrite this letter ")
    assert "<|im_start|>user\nRewrite this letter so that it is addressed to Mr Brown" in run.text
    assert run.text.partition("Anna White<|im_end|>\n<|im_start|>assistant\n")[2].startswith("Dear Mr Brown")
    labels = ("duo ", "target alone ", "duo chose ", "because ", "tokens: ")
    for line, label in zip(run.stderr.splitlines()[2:], labels, strict=True):
        assert line.startswith(label)
    assert "; the same text\n" in run.stderr
