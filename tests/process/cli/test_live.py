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
from itertools import islice
from pathlib import Path

import pytest

from duo.cli.terminal.live import advance, status
from duo.diagnose.pulse import Reading
from duo.spec.schedule import Schedule
from tests.command import ONE_EACH, Argument, command, duo, models
from tests.process.cli.screen import Screen, needs_tmux
from tests.process.cli.terminal import Terminal

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
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (23, 10), (40, 5), (80, 4)])
def test_the_text_is_the_same_with_it(tmp_path: Path, columns: int, lines: int) -> None:
    pieces = [*_pieces(columns, 150), *("y" * columns, "edge", "\n", "z" * (columns - 1), "é", "\n", "end")]
    shown = {}
    for way in ("plain", "live"):
        with _typist(tmp_path, way, columns, lines) as typist:
            for i, piece in enumerate(pieces):
                typist.order(piece)
                if way == "live" and i == 100:
                    assert _has_status(typist.screen) == (lines >= 5)
            shown[way] = typist.finish()
    assert shown["live"] == shown["plain"]
    assert "y" * columns in shown["live"].replace("\n", "")


@needs_tmux
@pytest.mark.parametrize("waits", [True, False])
def test_the_text_survives_changes_of_size(tmp_path: Path, waits: bool) -> None:
    sizes = [(60, 10), (80, 24), (80, 12), (30, 8), (33, 24), (80, 4), (80, 24)]
    shown = {}
    for way in ("plain", "live"):
        with _typist(tmp_path, way, 80, 24) as typist:
            pieces = iter(_pieces(7, 400))
            for size in sizes:
                for piece in islice(pieces, 40):
                    typist.order(piece)
                typist.screen.resize(*size)
                if waits:
                    typist.order(size)
            for piece in pieces:
                typist.order(piece)
            typist.order(sizes[-1])
            typist.order("The\nend")
            if way == "live":
                assert _has_status(typist.screen)
            shown[way] = typist.finish()
    assert shown["live"] == shown["plain"]
    assert not any(words in shown["live"] for words in STATUS)


@needs_tmux
def test_a_line_that_is_full_after_a_change_of_size(tmp_path: Path) -> None:
    shown = {}
    for way in ("plain", "live"):
        with _typist(tmp_path, way, 30, 12) as typist:
            typist.order("x" * 45)
            typist.screen.resize(45, 12)
            typist.order((45, 12))
            typist.order("")
            typist.order("y")
            shown[way] = typist.finish()
    assert shown["live"] == shown["plain"]
    assert shown["live"].replace("\n", "") == "x" * 45 + "y"


@needs_tmux
@pytest.mark.parametrize(
    ("columns", "lines", "n_rows"), [(80, 14, 0), (80, 14, 1), (80, 14, 3), (160, 14, 0), (160, 14, 40), (80, 5, 40)]
)
def test_a_text_anywhere_on_a_screen_that_is_halved(tmp_path: Path, columns: int, lines: int, n_rows: int) -> None:
    """Where a status below it wraps, tmux may push the row of the cursor off the screen, and forget where it was."""
    shown = {}
    for way in ("plain", "live"):
        with _typist(tmp_path, way, columns, lines) as typist:
            for piece in (*(f"row {i}\n" for i in range(n_rows)), "o", "ne"):
                typist.order(piece)
            for size in ((79, lines), (39, min(lines, 10)), (19, 5))[columns == 80 :]:
                assert way == "plain" or _has_status(typist.screen)
                typist.screen.resize(*size)
                typist.order(size)
                typist.order(" more")
            shown[way] = typist.finish()
    assert shown["live"] == shown["plain"]


@needs_tmux
def test_it_is_as_wide_as_the_screen_once_there_is_text_above(tmp_path: Path) -> None:
    with _typist(tmp_path, "live", 80, 14) as typist:
        for piece in ("a", "\n\nb"):
            typist.order(piece)
        assert _has_status(typist.screen)
        assert "accepted" not in typist.screen.shown()
        typist.order("\nc")
        assert _has_status(typist.screen, ("accepted", *STATUS[1:]))
        typist.finish()


# With the real command

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
        assert screen_text.startswith(text.rstrip("\n"))
        assert "\ntokens: 24 tps: " in screen_text
        assert "│" not in screen_text


@needs_tmux
def test_it_is_shown_while_the_text_is_written_and_gone_after_ctrl_c(demo_pair: tuple[Path, Path]) -> None:
    endless = ("-p", "Count: 1 2 3 4", "-n", "-1", "--ignore-eos", "--schedule", "async", *ONE_EACH, "--live")
    with Screen(command(*models(*demo_pair), *endless), 70, 14) as screen:
        assert _has_status(screen, n_looks=2000)
        assert re.search(r"^│ [\d.]+ tokens/s · [\d.]+ mean", screen.shown(), re.MULTILINE)
        screen.resize(40, 10)
        assert _has_status(screen, n_looks=2000)
        screen.type("C-c")
        assert screen.finish() == 130
        assert "stopped: interrupted" in screen.shown()
        assert "│" not in screen.shown()


def test_where_there_is_no_terminal_it_says_so_once(tiny: Path) -> None:
    arguments = ("-m", tiny, "-p", "the cat", "-n", "8", "-t", "1")
    plain, live = duo(*arguments), duo(*arguments, "--live")
    assert live.stdout == plain.stdout
    assert live.warnings == ["duo: warning: --live needs a terminal on stdout, and not TERM=dumb"]


def test_a_terminal_that_can_do_nothing_gets_the_text_alone(tiny: Path) -> None:
    arguments = ("-m", tiny, "-p", "the cat", "-n", "8", "-t", "1")
    shown = []
    for more in ((), ("--live",)):
        with Terminal(*arguments, *more, env={"TERM": "dumb"}) as terminal:
            assert terminal.finish() == 0
            assert ("--live needs a terminal" in terminal.stderr) == bool(more)
        shown.append(terminal.shown)
    assert shown[0] == shown[1]


def test_no_escape_is_left_open(demo_pair: tuple[Path, Path]) -> None:
    """The cursor is shown and lines wrap after each piece: whatever ends the process, the terminal works."""
    with Terminal(*models(*demo_pair), *PARIS, "--live", env={"COLUMNS": "80"}, size=(80, 24)) as terminal:
        assert terminal.finish() == 0
    assert terminal.shown.count(b"\x1b[?25l") == terminal.shown.count(b"\x1b[?25h") > 0
    assert terminal.shown.count(b"\x1b[?7l") == terminal.shown.count(b"\x1b[?7h") > 0
    assert terminal.shown.rindex(b"\x1b[?25h") > terminal.shown.rindex(b"\x1b[?25l")


# The three lines

READING = Reading(256, 120.44, 99.96, 0.834, 0.5, 1.0, 5, Schedule.ASYNC)


def _plain(_code: str, text: str) -> str:
    return text


def test_the_three_lines() -> None:
    assert status(READING, 80, "█░│·", _plain) == [
        "│ 120.4 tokens/s · 100.0 mean · 256 tokens · 83% accepted",
        "│ target ██████████░░░░░░░░░░  50%  draft ████████████████████ 100%",
        "│ async: both at once · 5 guesses ahead",
    ]
    assert status(Reading(n_tokens=1), 80, "#-||", _plain) == [
        "| - tokens/s | - mean | 1 tokens",
        f"| target {'-' * 20}   0%  draft {'-' * 20}   0%",
        "| off: the target alone | 0 guesses ahead",
    ]


@pytest.mark.parametrize("width", range(1, 90))
def test_they_fit_any_width(width: int) -> None:
    for line in status(READING, width, "█░│·", _plain):
        assert len(line) <= max(width, 2)


def test_they_are_in_the_texts_colours() -> None:
    lines = status(READING, 80, "█░│·", lambda code, text: f"<{code}>{text}</>")
    assert "<1>██████████</>" in lines[1]
    assert "<32>████████████████████</>" in lines[1]


@pytest.mark.parametrize(
    ("column", "text", "end"),
    [
        (0, "abc", (0, 3)),
        (7, "abc", (0, 10)),
        (8, "abc", (1, 1)),
        (10, "a", (1, 1)),
        (10, "\na", (1, 1)),
        (9, "漢", (1, 2)),
        (8, "漢", (0, 10)),
        (0, "e\u0301", (0, 1)),
        (10, "\u0301", (0, 10)),
        (3, "\t", (0, 8)),
        (9, "\t", (0, 9)),
        (0, "x" * 25, (2, 5)),
        (5, "\n\n", (2, 0)),
    ],
)
def test_where_a_text_ends(column: int, text: str, end: tuple[int, int]) -> None:
    assert advance(column, text, 10) == end
