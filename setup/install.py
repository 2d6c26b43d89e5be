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
from threading import Event, Thread

INTERVAL_S = 8.0
N_LAST_LINES = 40
STEP = re.compile(r"\s*\[(?:(\d+)/([1-9]\d*)| *(\d+)%)\] ")  # of Ninja: [12/87], and of make: [ 13%]


class Progress:
    """What pip does, by its output; `seconds` are counted from its start."""

    def __init__(self) -> None:
        self.share = 0.0  # of the build's steps
        self.n_steps = 0
        self.began: tuple[float, float] | None = None  # seconds and share at the first step

    def read(self, line: str, seconds: float) -> None:
        """Take note of a line of pip's output."""
        if step := STEP.match(line):
            done, total = step[1] or step[3], int(step[2] or 100)
            if 2 * total < self.n_steps:
                return  # a build within one of the steps
            self.n_steps, self.share = total, int(done) / total
            self.began = self.began or (seconds, self.share)

    def text(self, seconds: float) -> str:
        """One line about what pip does now."""
        if self.began is None or self.share >= 1:
            return f"installing: {seconds:.0f} s"
        began, first = self.began
        line = f"compiling llama.cpp: {self.share:.0%}"
        if self.share == first:
            return line
        left = (seconds - began) * (1 - self.share) / (self.share - first)
        return f"{line}, {_duration(left)} left"


def _duration(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {max(10, round(seconds, -1)):.0f} s"


def _report(progress: Progress, start: float, finished: Event) -> None:
    is_terminal = sys.stdout.isatty()
    while not finished.wait(1.0 if is_terminal else INTERVAL_S):
        line = progress.text(time.monotonic() - start)
        print(f"\r\033[K{line}" if is_terminal else f"{line}\n", end="", flush=True)
    if is_terminal:
        print("\r\033[K", end="", flush=True)


def main() -> int:
    """Run pip; its exit status."""
    log_path = Path(sys.prefix) / "install.log"
    progress, finished, start = Progress(), Event(), time.monotonic()
    last: deque[str] = deque(maxlen=N_LAST_LINES)
    reporter = Thread(target=_report, args=(progress, start, finished))
    command = [sys.executable, "-m", "pip", "install", "--verbose", *sys.argv[1:]]
    with (
        log_path.open("w", encoding="utf-8", buffering=1) as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip,
    ):
        assert pip.stdout is not None
        reporter.start()
        try:
            for line in pip.stdout:
                log.write(line)
                last.append(line)
                progress.read(line, time.monotonic() - start)
        finally:
            finished.set()
            reporter.join()
    if pip.returncode:
        print(*last, f"all that pip printed: {log_path}\n", sep="", end="", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
