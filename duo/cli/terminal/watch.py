"""What the main thread does for a run beside writing its text."""

from __future__ import annotations

import time
from typing import Any

from duo.cli.terminal.console import warn
from duo.cli.terminal.live import REFRESH_S, Live
from duo.diagnose.trace import TraceFile
from duo.engine.metrics import Metrics

_STALL_S = 30.0


class Watch:
    """Keeps --live and --trace up to date, and says so when nothing comes for long."""

    def __init__(self, metrics: Metrics, live: Live | None, trace: TraceFile | None) -> None:
        self.metrics = metrics
        self._live = live
        self._trace = trace
        self._warned = False
        self._last = time.perf_counter()
        self.pause_s = REFRESH_S if live or trace else _STALL_S  # after which on_pause is to be called

    def __enter__(self) -> Watch:
        """Begin, at the beginning of a line."""
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Clear the screen of it, and write the trace to its end."""
        if self._live is not None:
            self._live.__exit__(*error)
        if self._trace is not None:
            self._trace.close()

    def on_step(self) -> None:
        """A step has been written."""
        self._last = time.perf_counter()
        self._look()

    def on_pause(self) -> None:
        """Nothing has come for a while."""
        self._look()
        # A long prompt has a progress bar.
        if self.metrics.steps and not self._warned and time.perf_counter() - self._last >= _STALL_S:
            self._warned = True
            warn("no token for 30 seconds: the model is very slow or its device hangs; Ctrl-C stops")

    def _look(self) -> None:
        if self._live is not None:
            self._live.refresh()
        if self._trace is not None:
            self._trace.flush()
