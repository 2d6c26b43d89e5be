"""--live: the text is on the screen and in its history as it is without, and a status below it while it is written."""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from duo.cli.terminal import writer as live
from duo.cli.terminal.writer import TextWriter
from duo.engine.recorder import Recorder
from duo.engine.statistics import StepRecord
from duo.speculation.modes import Schedule
from duo.speculation.types import Step
from tests.command import ONE_EACH, Argument, command, environment, models
from tests.serving import wait_until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")

WORDS = (
    "the", "Zürich", "gods", "漢字", "かな", "한국어", "🍎", "🍊🍋", "a", "internationalisation", "e\u0301t", "x" * 50,
)  # fmt: skip
STATUS = ("tokens/s", "target ", "async")
HISTORY = ("-J", "-S", "-")
NUMBERS = count()


class Screen:
    """A command on a terminal of tmux, `columns` by `lines`; the screen stays when it has ended."""

    def __init__(self, arguments: list[Argument], columns: int, lines: int) -> None:
        self._socket = f"duo-test-{os.getpid()}-{next(NUMBERS)}"
        end = f"tmux -L {self._socket} set -g @status $? ';' wait-for -S duo-done; exec sleep 1000"
        script = f"trap : INT; {shlex.join(map(os.fsdecode, arguments))}; {end}"
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, script, ";", "set", "-g", "status", "off")
        self.resize(columns, lines)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def finish(self) -> int:
        """Wait for the end of the command. Returns its exit status."""
        self._tmux("wait-for", "duo-done")
        return int(self._tmux("show", "-gv", "@status"))

    def shown(self, *options: str) -> str:
        """What is on the screen; with "-S", "-" after all that has left it at its top, with "-J" in whole lines."""
        text = self._tmux("capture-pane", "-p", *options)
        return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        env = environment({"TERM": "screen-256color", "LC_ALL": "C.UTF-8"})
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300).stdout


def typist(folder: Path, way: str, pieces: list[Any], columns: int, lines: int) -> Screen:
    """Writes pieces of text as a run does, "live" or "plain"; it waits where they have a size of the terminal."""
    file = folder / "pieces.json"
    file.write_text(json.dumps(pieces), encoding="utf-8")
    return Screen([sys.executable, "-m", __name__, way, file], columns, lines)


def main(way: str, file: Path) -> None:
    """What runs on the screen."""
    live.REFRESH_S = 0.0
    metrics = Recorder()
    shown = live.Live(metrics, marks=True) if way == "live" else None
    writer = TextWriter(marks=True, stream=shown)
    with shown or nullcontext():
        for piece in json.loads(file.read_text(encoding="utf-8")):
            if isinstance(piece, str):
                now = time.perf_counter()
                metrics.steps.append(StepRecord(now, now, 2, 1, 2, Schedule.ASYNC))
                writer.step(Step((1,), 1, (piece.encode(),)))
                if shown is not None:
                    shown.refresh()
            else:
                while os.get_terminal_size() != tuple(piece):
                    time.sleep(0.01)
    writer.end()


def has_status(screen: Screen) -> bool:
    """Whether it is shown below the text."""
    last = screen.shown().splitlines()[-3:]
    return len(last) == 3 and all(words in line for words, line in zip(STATUS, last, strict=True))


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (23, 6)])
def test_the_text_is_the_same_with_it(tmp_path: Path, columns: int, lines: int) -> None:
    dice = random.Random(columns)
    pieces = [dice.choice((" ", " ", " ", " ", "\n", "\n\n", "")) + dice.choice(WORDS) for _ in range(150)]
    pieces += ["y" * columns, "edge", "\n", "z" * (columns - 1), "é", "\n", "end\n", *["w" * 29] * 30, "end"]
    shown = []
    for way in ("plain", "live"):
        with typist(tmp_path, way, pieces, columns, lines) as screen:
            assert screen.finish() == 0
            shown.append(screen.shown(*HISTORY))
    assert shown[1] == shown[0]
    assert "y" * columns in shown[1].replace("\n", "")


def test_the_text_is_complete_after_changes_of_size(tmp_path: Path) -> None:
    sizes = ((60, 10), (80, 12), (100, 24))
    pieces = [piece for size in sizes for piece in (*(f"word{size[0]}-{i} " for i in range(30)), "\n", size)]
    with typist(tmp_path, "live", pieces, 80, 24) as screen:
        for size in sizes:
            wait_until(lambda size=size: f"word{size[0]}-29" in screen.shown() and has_status(screen))  # type: ignore[misc]
            screen.resize(*size)
        assert screen.finish() == 0
        shown = screen.shown(*HISTORY)
    assert re.findall(r"word[\d-]+", shown) == [f"word{columns}-{i}" for columns, _ in sizes for i in range(30)]


def test_it_is_shown_while_the_text_is_written_and_gone_after_ctrl_c(demo_pair: tuple[Path, Path]) -> None:
    text = ("-p", "Count: 1 2 3 4", "-n", "-1", "--ignore-eos", "--schedule", "async", *ONE_EACH, "--live")
    with Screen(command(*models(*demo_pair), *text), 70, 14) as screen:
        wait_until(lambda: has_status(screen))
        assert re.search(r"^│ [\d.]+ tokens/s · [\d.]+ mean", screen.shown(*HISTORY), re.MULTILINE)
        screen.type("C-c")
        assert screen.finish() == 130
        assert "stopped: interrupted" in screen.shown(*HISTORY)
        assert "│" not in screen.shown(*HISTORY)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
