"""A draft in a process of its own, which drafts for this one over loopback."""

from __future__ import annotations

import threading
from typing import Any

from duo.bench.contestant import Interrupted
from duo.config import ContextConfig, DraftConfig, ModelConfig, ThreadConfig
from duo.engine.engine import Engine
from duo.engine.slot import Drafts, Slot
from duo.errors import LinkError
from duo.link.process import DRAFT_BATCH, DraftProcess
from duo.link.remote_drafts import RemoteDrafts

_PATIENCE_S = 60.0  # to load the draft and join
_LOOK_S = 0.05


class LoopbackDraft:
    """The draft, and the port that it connects to, from `with` to its end. Its process starts with the first text."""

    def __init__(self, engine: Engine, draft: ModelConfig, drafting: DraftConfig, threads: ThreadConfig) -> None:
        """`threads` are those of both models. Raises UsageError."""
        n_target, n_draft = threads.beside
        self._engine = engine
        self._threads = threads
        self._drafts = RemoteDrafts()
        self._drafts.limit(drafting, n_target)
        context = ContextConfig(2 * drafting.n_max, n_draft, n_draft, n_ubatch=DRAFT_BATCH)
        self._process = DraftProcess("the remote draft", draft, context, self._drafts)
        self._drafts.process = self._process

    def __enter__(self) -> LoopbackDraft:
        """Listen."""
        self._process.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End the process, then the port."""
        self._process.__exit__(*error)

    def drafts(self, stop: threading.Event) -> Drafts:
        """The draft, once it has joined. Raises LinkError if it does not come, Interrupted."""

        def ready(slot: Slot) -> None:
            assert slot.target_context is not None
            self._drafts.ready(slot.target, slot.target_context, stop)

        if self._drafts.target is None:
            self._engine.call(ready)
        for _ in range(int(_PATIENCE_S / _LOOK_S)):
            if self._drafts.n_connected:
                return Drafts(remote=self._drafts, threads=self._threads)
            if stop.wait(_LOOK_S):
                raise Interrupted
        raise LinkError(f"the remote draft did not join within {_PATIENCE_S:.0f} s")
