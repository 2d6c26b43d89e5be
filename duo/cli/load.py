"""Load models with a progress bar, heeding Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duo.cli.configs import model_configs
from duo.cli.interrupts import on_interrupt
from duo.cli.options import RunOptions
from duo.cli.output import progress_bar, say, warn
from duo.cli.profile import wanted_profile
from duo.config import ModelConfig
from duo.engine.background import Background
from duo.engine.pair import Pair
from duo.models.profiles import Profile

if TYPE_CHECKING:
    from duo.cli.elsewhere import Elsewhere


@contextmanager
def models(options: RunOptions, elsewhere: Elsewhere | None) -> Iterator[tuple[Pair, Profile | None]]:
    """The models that the options ask for, and the profile of the pair; a draft on RPC servers is left `elsewhere`.

    Raises DuoError, or SystemExit after an interruption.
    """
    target, draft = model_configs(options)
    here = draft
    if draft is not None and draft.rpc_servers and elsewhere is not None:
        elsewhere.add_process(options, draft)
        here = None
    with load(target, here) as pair:
        yield pair, wanted_profile(options, target, draft)


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
