"""--live: the text is on the screen and in its history as it is without, and a status below it while it is written."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, command, duo, models
from tests.process.cli.screen import Screen, needs_tmux

WORDS = (
    "the",
    "Zürich",
    "gods",
    "漢字",
    "かな",
    "한국어",
    "🍎",
    "🍊🍋",
    "a",
    "internationalisation",
    "e\u0301te\u0301",
    "—",
    "x" * 50,
)
STATUS = ("tokens/s", "target ", "async")


def _pieces(seed: int, n: int) -> list[str]:
    """Pieces of lines short and long, some of which are as wide as the screen."""
    chosen = random.Random(seed)
    pieces = []
    for _ in range(n):
        word = chosen.choice(WORDS)
        pieces += [chosen.choice((" ", " ", " ", " ", "\n", "\n\n", "")) + word]
    return pieces


class Typist:
    """tests/process/cli/typist.py on a screen."""

    def __init__(self, screen: Screen, orders: Path, answers: Path) -> None:
        self.screen = screen
        self._orders = orders.open("w", encoding="utf-8")
        self._answers = answers.open(encoding="utf-8")

    def order(self, order: str | tuple[int, int]) -> None:
        print(json.dumps(order), file=self._orders, flush=True)
        assert self._answers.readline() == "done\n"

    def finish(self) -> str:
        print("null", file=self._orders, flush=True)
        assert self.screen.finish() == 0
        self._orders.close()
        self._answers.close()
        return self.screen.shown()


@contextmanager
def _typist(folder: Path, way: str, columns: int, lines: int) -> Iterator[Typist]:
    orders, answers = folder / f"{way}-orders", folder / f"{way}-answers"
    os.mkfifo(orders)
    os.mkfifo(answers)
    arguments: list[Argument] = [sys.executable, "-m", "tests.process.cli.typist", way, orders, answers]
    with Screen(arguments, columns, lines) as screen:
        yield Typist(screen, orders, answers)


def _has_status(screen: Screen, parts: tuple[str, ...] = STATUS, n_looks: int = 100) -> bool:
    """Whether it is shown below the text: tmux may be some bytes behind, and a run may still load its models."""
    for _ in range(n_looks):
        last = screen.shown(history=False, joined=False).splitlines()[-3:]
        if len(last) == 3 and all(words in line for words, line in zip(parts, last, strict=True)):
            return True
        time.sleep(0.02)
    return False


@needs_tmux
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (23, 10), (40, 6)])
def test_the_text_is_the_same_with_it(tmp_path: Path, columns: int, lines: int) -> None:
    pieces = [
        *_pieces(columns, 150),
        *("y" * columns, "edge", "\n", "z" * (columns - 1), "é", "\n", "end\n"),
        *["w" * 29] * 30,
        "end",
    ]
    shown = {}
    for way in ("plain", "live"):
        with _typist(tmp_path, way, columns, lines) as typist:
            for i, piece in enumerate(pieces):
                typist.order(piece)
                if way == "live" and i == 100:
                    assert _has_status(typist.screen)
            shown[way] = typist.finish()
    assert shown["live"] == shown["plain"]
    assert "y" * columns in shown["live"].replace("\n", "")


@needs_tmux
def test_the_text_is_complete_after_changes_of_size(tmp_path: Path) -> None:
    with _typist(tmp_path, "live", 80, 24) as typist:
        for size in ((60, 10), (80, 12), (100, 24)):
            for i in range(30):
                typist.order(f"word{size[0]}-{i} ")
            typist.order("\n")
            typist.screen.resize(*size)
            typist.order(size)
        shown = typist.finish()
    assert re.findall(r"word[\d-]+", shown) == [f"word{columns}-{i}" for columns in (60, 80, 100) for i in range(30)]


# With the real command

ENDLESS = ("-p", "Count: 1 2 3 4", "-n", "-1", "--ignore-eos", "--schedule", "async", *ONE_EACH, "--live")
PARIS = ("-p", "The capital of France is", "-n", "24", "--ignore-eos", "--exact", *ONE_EACH)


@needs_tmux
def test_a_run_leaves_its_text_and_its_statistics(demo_pair: tuple[Path, Path]) -> None:
    arguments = (*models(*demo_pair), *PARIS)
    shown = {}
    for more in ((), ("--live",)):
        with Screen(command(*arguments, *more), 60, 12) as screen:
            assert screen.finish() == 0
            shown[more] = screen.shown()
    text = duo(*arguments).text
    for screen_text in shown.values():
        assert screen_text.startswith("duo: this model has a chat template: --chat uses it\n")
        assert text.rstrip("\n") in screen_text
        assert "\ntokens: 24 tps: " in screen_text
        assert "│" not in screen_text


@needs_tmux
def test_it_is_shown_while_the_text_is_written_and_gone_after_ctrl_c(demo_pair: tuple[Path, Path]) -> None:
    with Screen(command(*models(*demo_pair), *ENDLESS), 70, 14) as screen:
        assert _has_status(screen, n_looks=2000)
        assert re.search(r"^│ [\d.]+ tokens/s · [\d.]+ mean", screen.shown(), re.MULTILINE)
        screen.type("C-c")
        assert screen.finish() == 130
        assert "stopped: interrupted" in screen.shown()
        assert "│" not in screen.shown()


def test_where_there_is_no_terminal_it_says_so_once(tiny: Path) -> None:
    arguments = ("-m", tiny, "-p", "the cat", "-n", "8", "-t", "1")
    plain, live = duo(*arguments), duo(*arguments, "--live")
    assert live.stdout == plain.stdout
    assert live.warnings == ["duo: warning: --live needs a terminal on stdout, and not TERM=dumb"]
