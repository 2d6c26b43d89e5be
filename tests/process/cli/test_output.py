"""What goes to stdout when it is no terminal: exactly the text's bytes."""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from duo.cli.terminal.console import with_options
from tests.command import ONE_EACH, command, duo, environment, models
from tests.process.cli.reference import greedy_text

FRUIT = "Emoji: 🍎🍊🍋🍌🍉🍇🍓🍎🍊🍋🍌🍉🍇🍓🍎🍊"
TOKYO = "日本語の文章です。東京は日本の首都です。大阪は"
PARIS = "The capital of France is"

# Exact, so that drafted and plain runs come to the same text whatever the machine.
EXACT = ("--exact", "-n", "16", *ONE_EACH)


@pytest.mark.parametrize(
    "prompt", [PARIS, FRUIT, TOKYO, "def fibonacci(n):\n"], ids=["paris", "fruit", "tokyo", "code"]
)
def test_the_text_is_the_targets_own_to_the_byte(demo_pair: tuple[Path, Path], prompt: str) -> None:
    target, draft = demo_pair
    expected = greedy_text(target, prompt, 16)
    assert expected
    assert duo("-m", target, "-p", prompt, *EXACT).stdout == expected
    assert duo("-m", target, "-md", draft, "-p", prompt, *EXACT).stdout == expected


def test_a_text_that_is_no_utf_8_comes_out_as_it_is(tiny: Path) -> None:
    expected = greedy_text(tiny, "the cat", 64)
    with pytest.raises(UnicodeDecodeError):
        expected.decode()
    arguments = ("-p", "the cat", "-n", "64", "--exact", *ONE_EACH)
    assert duo("-m", tiny, *arguments).stdout == expected
    assert duo("-m", tiny, "-md", tiny, *arguments).stdout == expected


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("prompt", [FRUIT, TOKYO], ids=["fruit", "tokyo"])
def test_every_write_holds_whole_characters(demo_pair: tuple[Path, Path], prompt: str, drafted: bool) -> None:
    target, draft = demo_pair
    process = subprocess.Popen(
        command(*models(target, draft if drafted else None), "-p", prompt, *EXACT),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        # Writes this small arrive as they were made, one or several at a time.
        writes = list(iter(partial(os.read, process.stdout.fileno(), 1 << 16), b""))
    text = b"".join(writes[:-1]).decode()
    assert len(text.encode()) > len(text)
    for data in writes[:-1]:  # with the last, the text may end in the middle of a character
        data.decode()


# Marks


_MARK = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(("option", "marked"), [("auto", False), ("never", False), ("always", True)])
@pytest.mark.parametrize("no_color", ["", "1"])
def test_colour_in_a_pipe_only_when_asked_for(
    demo_pair: tuple[Path, Path], option: str, marked: bool, no_color: str
) -> None:
    target, draft = demo_pair
    arguments = ("-m", target, "-md", draft, "-p", PARIS, *EXACT)
    run = duo(*arguments, "--color", option, env={"NO_COLOR": no_color})
    assert bool(_MARK.search(run.stdout)) == marked
    assert _MARK.sub(b"", run.stdout) == duo(*arguments).stdout
    assert not _MARK.search(run.stderr.encode())


# A reader who has had enough


@pytest.mark.parametrize("drafted", [True, False])
def test_a_broken_pipe_ends_quietly(demo_pair: tuple[Path, Path], drafted: bool) -> None:
    target, draft = demo_pair
    arguments = [*models(target, draft if drafted else None), "-p", "Count: 1 2 3 4", "--ignore-eos", *ONE_EACH]
    process = subprocess.Popen(command(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1) == b" "
    process.stdout.close()
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, b"")


def test_a_closed_stdout_loses_the_text_and_nothing_else(tiny: Path) -> None:
    arguments = command("-m", tiny, "-p", "x", "-n", "2", "-t", "1")
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *arguments]
    done = subprocess.run(closed, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1].startswith("tokens: 2 ")


def test_what_messages_call_a_parameter_is_an_option_here() -> None:
    said = "layers on devices (n_gpu_layers, draft_n_gpu_layers): take a smaller n_ctx, or profile=False"
    assert with_options(said) == "layers on devices (-ngl, -ngld): take a smaller -c, or --no-profile"
    for name in ("/models/n_ctx.gguf", "my-n_ctx", "n_ctx_train", "top_k"):
        assert with_options(name) == name
