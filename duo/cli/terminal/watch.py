"""What the main thread does during a run, apart from writing the text."""

from __future__ import annotations

import time
from typing import Any

from duo.cli.terminal.console import warn
from duo.cli.terminal.live import REFRESH_S, Live
from duo.diagnose.trace import TraceFile
from duo.engine.metrics import Metrics

_STALL_S = 30.0


class Watch:
    """Updates --live and --trace, and warns if no token is generated for long."""

    def __init__(self, metrics: Metrics, live: Live | None, trace: TraceFile | None) -> None:
        self.metrics = metrics
        self.live = live
        self._trace = trace
        self._warned = False
        self._last = time.perf_counter()
        self.pause_s = REFRESH_S if live or trace else _STALL_S  # interval of on_pause()

    def __enter__(self) -> Watch:
        """Begin, at the start of a line."""
        if self.live is not None:
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Remove the status, and complete the trace."""
        if self.live is not None:
            self.live.__exit__(*error)
        if self._trace is not None:
            self._trace.close()

    def on_step(self) -> None:
        """A step was written."""
        self._last = time.perf_counter()
        self._look()

    def on_pause(self) -> None:
        """No step for a while."""
        self._look()
        # For a long prompt, there is a progress bar.
        if self.metrics.steps and not self._warned and time.perf_counter() - self._last >= _STALL_S:
            self._warned = True
            warn("no token for 30 seconds: the model is very slow or its device hangs (Ctrl-C to stop)")

    def _look(self) -> None:
        if self.live is not None:
            self.live.refresh()
        if self._trace is not None:
            self._trace.flush()
