"""Writes given pieces as a run does, with --live or without: `python -m …typist live|plain ORDERS ANSWERS`.

Orders are lines of JSON: a piece of text; a size of the terminal, to be waited for; or null for the end. After each it
answers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from duo.cli.terminal import live
from duo.cli.terminal.live import Live
from duo.cli.terminal.watch import Watch
from duo.cli.terminal.writer import TextWriter
from duo.engine.metrics import Metrics
from duo.spec.schedule import Schedule
from duo.spec.types import Step


def main(way: str, orders: Path, answers: Path) -> None:
    live.REFRESH_S = 0.0
    metrics = Metrics()
    shown = Live(metrics, marks=True) if way == "live" else None
    watch, writer = Watch(metrics, shown, None), TextWriter(marks=True, stream=shown)
    with watch, orders.open(encoding="utf-8") as reader, answers.open("w", encoding="utf-8") as told:
        for line in reader:
            order = json.loads(line)
            if order is None:
                break
            if isinstance(order, str):
                metrics.stepped(time.perf_counter(), 2, 1, 2, Schedule.ASYNC)
                writer.step(Step((1,), 1, (order.encode(),)))
                watch.on_step()
            else:
                while os.get_terminal_size() != tuple(order):
                    time.sleep(0.01)
            print("done", file=told, flush=True)
    writer.end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
