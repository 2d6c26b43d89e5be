"""What a run looks like on a terminal."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.command import ONE_EACH, SLOW_TARGET, Argument, duo, models
from tests.process.cli.terminal import Terminal

PARIS = "The capital of France is"
FRUIT = "Emoji: 🍎🍊🍋🍌🍉🍇🍓🍎🍊🍋🍌🍉🍇🍓🍎🍊"

_TOKEN = re.compile(rb"(\x1b\[1m)?(\x1b\[32m)?([^\x1b]+)\x1b\[0m")


class Token(NamedTuple):
    bold: bool
    green: bool
    text: bytes


def _arguments(demo_pair: tuple[Path, Path], prompt: str = PARIS) -> list[Argument]:
    target, draft = demo_pair
    return [*models(target, draft), "-p", prompt, "-n", "24", "--exact", *ONE_EACH]


def _show(*arguments: Argument, before: str = "", env: dict[str, str] | None = None) -> tuple[bytes, str]:
    """What appears on the terminal, and what was said on stderr."""
    with Terminal(*arguments, before=before, env=env) as terminal:
        assert terminal.finish() == 0
        return terminal.shown, terminal.stderr


def _tokens(shown: bytes) -> list[Token]:
    """All tokens with their marks; nothing is outside them."""
    found = list(_TOKEN.finditer(shown))
    assert b"".join(match[0] for match in found) == shown
    return [Token(bool(match[1]), bool(match[2]), match[3]) for match in found]


def test_accepted_tokens_are_green_and_steps_alternate(demo_pair: tuple[Path, Path]) -> None:
    arguments = [*_arguments(demo_pair), "--schedule", "async"]
    shown, said = _show(*arguments, before=SLOW_TARGET)
    tokens = _tokens(shown)
    assert b"".join(token.text for token in tokens) == duo(*arguments).stdout

    accepted = re.search(r" (\d+) accepted ", said)
    decodes = re.search(r"(\d+) decodes", said)
    assert accepted is not None
    assert decodes is not None
    assert sum(token.green for token in tokens) == int(accepted[1]) > 0
    assert sum(not token.green for token in tokens) == int(decodes[1]) + 1
    # A step ends with the one token that is the target's own, and the next looks different.
    assert not tokens[0].bold
    for token, following in pairwise(tokens):
        assert (token.bold != following.bold) == (not token.green)


def test_a_plain_run_has_no_green(demo_pair: tuple[Path, Path]) -> None:
    tokens = _tokens(_show(*_arguments(demo_pair), "--draft", "0")[0])
    assert not any(token.green for token in tokens)
    assert [token.bold for token in tokens] == [i % 2 == 1 for i in range(len(tokens))]


def test_characters_are_never_torn_apart(demo_pair: tuple[Path, Path]) -> None:
    *tokens, _ = _tokens(_show(*_arguments(demo_pair, FRUIT))[0])  # the last may be cut off by -n
    texts = [token.text.decode() for token in tokens]
    assert any(len(text.encode()) > len(text) for text in texts)


def test_color_always_in_a_pipe_is_as_on_a_terminal(demo_pair: tuple[Path, Path]) -> None:
    arguments = (*_arguments(demo_pair), "--schedule", "async", "--color", "always")
    run = duo(*arguments, before=SLOW_TARGET, env={"NO_COLOR": "1"})
    tokens = _tokens(run.stdout)
    assert {token.green for token in tokens} == {token.bold for token in tokens} == {True, False}


@pytest.mark.parametrize(
    ("options", "env"),
    [([], {"NO_COLOR": "1"}), (["--color", "never"], {}), (["--color", "auto"], {"TERM": "dumb"})],
)
def test_without_colour_it_is_the_text_alone(
    demo_pair: tuple[Path, Path], options: list[str], env: dict[str, str]
) -> None:
    arguments = _arguments(demo_pair)
    assert _show(*arguments, *options, env=env)[0] == duo(*arguments).stdout


def test_an_empty_no_color_does_not_count(demo_pair: tuple[Path, Path]) -> None:
    assert b"\x1b[1m" in _show(*_arguments(demo_pair), env={"NO_COLOR": ""})[0]


def test_the_statistics_begin_on_a_line_of_their_own(demo_pair: tuple[Path, Path]) -> None:
    arguments = _arguments(demo_pair)
    with Terminal(*arguments, "--color", "never", stderr_too=True) as terminal:
        assert terminal.finish() == 0
    assert duo(*arguments).stdout + b"\nprompt  " in terminal.shown
    assert re.search(rb"\ntokens: 24 tps: [0-9.]+\n$", terminal.shown)


def test_progress_is_shown_on_a_terminal_only(demo_pair: tuple[Path, Path]) -> None:
    target, _ = demo_pair
    arguments = ("-m", target, "-p", "one two three " * 16, "-ub", "16", "-n", "1", "-t", "1")
    with Terminal(*arguments, stderr_too=True) as terminal:
        assert terminal.finish() == 0
    assert b"reading the prompt" in terminal.shown
    assert b"reading the prompt" not in terminal.shown.rpartition(b"\x1b[2K")[2]  # it is wiped out in the end
    assert "reading" not in duo(*arguments).stderr
