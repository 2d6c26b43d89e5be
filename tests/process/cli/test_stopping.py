"""Where a text ends, and that the statistics say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import ONE_EACH, Run, duo, models
from tests.gguf_files import N_CTX_TRAIN

N_PROMPT = 8  # tokens of "the cat" in the tiny model
PARIS = ("-p", "The capital of France is", "--exact", *ONE_EACH)


def _reason(run: Run) -> str:
    assert run.status == 0
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("generated "))
    return line.partition("stopped: ")[2]


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("drafted", [True, False])
def test_as_many_tokens_as_asked_for(demo_pair: tuple[Path, Path], n: int, drafted: bool) -> None:
    target, draft = demo_pair
    run = duo(*models(target, draft if drafted else None), *PARIS, "-n", str(n))
    assert (_reason(run), run.n_tokens) == ("token limit", n)
    assert bool(run.text) == bool(n)


@pytest.mark.parametrize("attached", ["-n7", "--predict=7", "--n-predict=7"])
def test_other_ways_to_write_it(tiny: Path, attached: str) -> None:
    assert duo("-m", tiny, "-p", "the cat", "-t", "1", attached).n_tokens == 7


@pytest.mark.parametrize("drafted", [True, False])
def test_stop_strings(demo_pair: tuple[Path, Path], drafted: bool) -> None:
    target, draft = demo_pair
    arguments = (*models(target, draft if drafted else None), *PARIS, "-n", "16")
    text = duo(*arguments).text
    stop = text[-6:-2]
    expected = text[: text.index(stop)]
    assert "\n" in expected
    for stops in ([stop], ["zzz", stop], [stop, "zzz"]):
        run = duo(*arguments, *(word for text in stops for word in ("-r", text)))
        assert (_reason(run), run.text) == ("stop string", expected)
    # The first of several in the text, and escapes.
    run = duo(*arguments, "-r", stop, "-r", r"\n")
    assert (_reason(run), run.text) == ("stop string", text[: text.index("\n")])
    run = duo(*arguments, "-r", r"\n", "--no-escape")
    assert (_reason(run), run.text) == ("token limit", text)


@pytest.mark.parametrize("drafted", [True, False])
def test_the_end_of_the_text(demo_pair: tuple[Path, Path], drafted: bool) -> None:
    target, draft = demo_pair
    arguments = (*models(target, draft if drafted else None), "--chat", "--exact", *ONE_EACH)
    prompt = ("-p", "What is 2+2? Answer with a number.")
    run = duo(*arguments, *prompt, "-n", "24")
    assert _reason(run) == "end of text"
    assert run.n_tokens < 24
    assert "<|im_end|>" not in run.text

    on = duo(*arguments, *prompt, "-n", "24", "--ignore-eos")
    assert (_reason(on), on.n_tokens) == ("token limit", 24)
    assert on.text.startswith(run.text)
    assert len(on.text) > len(run.text)


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("n_ctx", [20, 256])
def test_a_context_that_is_full(tiny: Path, drafted: bool, exact: bool, n_ctx: int) -> None:
    options = ["--exact"] if exact else []
    run = duo(
        *models(tiny, tiny if drafted else None),
        *options,
        "-p",
        "the cat",
        "-n",
        "1000",
        "-c",
        str(n_ctx),
        "--ignore-eos",
        *ONE_EACH,
    )
    assert _reason(run) == "context full"
    assert run.stderr.splitlines()[0].startswith(f"prompt      {N_PROMPT} tokens")
    # The last token needs no place in the context: nothing comes after it.
    assert run.n_tokens == n_ctx - N_PROMPT + 1


def test_a_real_context_that_is_full(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    arguments = ("-m", target, "-c", "64", "--ignore-eos", "--exact", "-n", "1000", *ONE_EACH)
    prompt = ("-p", "one two three " * 16)
    drafted, plain = duo(*arguments, *prompt, "-md", draft), duo(*arguments, *prompt)
    assert _reason(drafted) == _reason(plain) == "context full"
    assert drafted.stdout == plain.stdout != b""


@pytest.mark.parametrize("exact", [[], ["--exact"]])
def test_to_the_end_is_as_far_as_the_model_was_trained(tiny: Path, exact: list[str]) -> None:
    run = duo("-m", tiny, "-p", "the cat", "--ignore-eos", "-t", "1", *exact)
    assert (_reason(run), run.n_tokens) == ("context full", N_CTX_TRAIN - N_PROMPT + 1)


@pytest.mark.parametrize("options", [["--draft", "0"], ["--spec-draft-n-max", "0"], ["--draft-max", "0"]])
def test_draft_0_is_a_plain_run(demo_pair: tuple[Path, Path], options: list[str]) -> None:
    target, draft = demo_pair
    run = duo("-m", target, "-md", draft, *PARIS, "-n", "4", *options)
    assert (run.status, run.n_tokens) == (0, 4)
    assert "drafted" not in run.stderr
