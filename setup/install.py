"""Install with pip, and say how far llama.cpp's build is: python setup/install.py OPTIONS-OF-PIP-INSTALL.

On a terminal one line that changes, elsewhere a line every eight seconds. What pip and the compiler print is in
install.log in the environment; if they fail, its end is printed, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from threading import Thread
from typing import TextIO

INTERVAL_S = 8.0
N_LAST_LINES = 40
STEP = re.compile(r"\s*\[(?:(\d+)/(\d+)| *(\d+)%)\] ")  # of Ninja: [12/87], and of make: [ 13%]


class Progress:
    """What pip does, by its output; `seconds` are counted from its start."""

    def __init__(self) -> None:
        self.share = 0.0  # of the build's steps
        self.began: tuple[float, float] | None = None  # seconds and share at the first step

    def read(self, line: str, seconds: float) -> None:
        """Take note of a line of pip's output."""
        if step := STEP.match(line):
            done, total, percent = step.groups()
            self.share = int(done) / int(total) if total else int(percent) / 100
            self.began = self.began or (seconds, self.share)

    def text(self, seconds: float) -> str:
        """One line about what pip does now."""
        if self.began is None:
            return f"preparing: {seconds:.0f} s"
        if self.share >= 1:
            return f"llama.cpp is compiled, installing: {seconds:.0f} s"
        began, first = self.began
        line = f"compiling llama.cpp: {self.share:.0%}"
        if self.share == first:
            return line
        left = (seconds - began) * (1 - self.share) / (self.share - first)
        return f"{line}, {_duration(left)} left"


def _duration(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {max(10, round(seconds, -1)):.0f} s"


def _copy(source: TextIO, log: TextIO, last: deque[str], progress: Progress, start: float) -> None:
    for line in source:
        log.write(line)
        log.flush()
        last.append(line)
        progress.read(line, time.monotonic() - start)


def main() -> int:
    """Run pip; its exit status."""
    log_path, is_terminal = Path(sys.prefix) / "install.log", sys.stdout.isatty()
    progress, last, start = Progress(), deque[str](maxlen=N_LAST_LINES), time.monotonic()
    command = [sys.executable, "-m", "pip", "install", "--verbose", *sys.argv[1:]]
    with (
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip,
    ):
        assert pip.stdout is not None
        reader = Thread(target=_copy, args=(pip.stdout, log, last, progress, start), daemon=True)
        reader.start()
        while reader.join(1.0 if is_terminal else INTERVAL_S) or reader.is_alive():
            line = progress.text(time.monotonic() - start)
            print(f"\r\033[K{line}" if is_terminal else line, end="" if is_terminal else "\n", flush=True)
    if is_terminal:
        print("\r\033[K", end="", flush=True)
    if pip.returncode:
        print(*last, f"all that pip printed: {log_path}\n", sep="", end="", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
