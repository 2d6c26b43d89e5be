"""Writes pieces as a run does, with --live or without: `python -m tests.process.cli.typist live|plain FILE`.

The file has a list as JSON, of pieces of text, and of sizes of the terminal that are waited for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from duo.cli.terminal import live
from duo.cli.terminal.live import Live
from duo.cli.terminal.writer import TextWriter
from duo.engine.metrics import Metrics
from duo.spec.schedule import Schedule
from duo.spec.types import Step


def main(way: str, file: Path) -> None:
    live.REFRESH_S = 0.0
    metrics = Metrics()
    shown = Live(metrics, marks=True) if way == "live" else None
    writer = TextWriter(marks=True, stream=shown)
    with shown or nullcontext():
        for piece in json.loads(file.read_text(encoding="utf-8")):
            if isinstance(piece, str):
                metrics.stepped(time.perf_counter(), 2, 1, 2, Schedule.ASYNC)
                writer.step(Step((1,), 1, (piece.encode(),)))
                if shown is not None:
                    shown.refresh()
            else:
                while os.get_terminal_size() != tuple(piece):
                    time.sleep(0.01)
    writer.end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
