"""Load models with a progress bar, heeding Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable

from duo.cli.interrupts import on_interrupt
from duo.cli.output import progress_bar, say, warn
from duo.config import ModelConfig
from duo.engine.background import Background
from duo.engine.pair import Pair


def load(target: ModelConfig, draft: ModelConfig | None) -> Pair:
    """Load the models on another thread, so that Ctrl-C is heard. Raises SystemExit after one."""
    with progress_bar() as bar:

        def work(put: Callable[[Pair], None], stop: threading.Event) -> None:
            def progress(name: str, share: float) -> bool:
                bar(f"loading {name}", share)
                return not stop.is_set()

            put(Pair.load(target, draft, progress, warn))

        loading = Background(work, "duo-load")
        with on_interrupt(loading.stop) as interrupt, loading:
            try:
                (pair,) = loading
            except Exception:
                if not interrupt.signal:
                    raise
    if interrupt.signal:
        say("duo: interrupted while loading")
        raise SystemExit(interrupt.status)
    return pair
