"""A real `duo back` in a process of its own, which drafts for this one over loopback."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from types import TracebackType

from duo.bench.contestant import Interrupted
from duo.bench.process import Child
from duo.config import ModelConfig, SamplingConfig
from duo.engine.helpers import Helpers
from duo.errors import LinkError
from duo.link.backs import Backs, Brief, Target
from duo.link.worker import Door
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.vocabulary import Fingerprint
from duo.server.drafts import draft_app
from duo.server.guard import Rules
from duo.server.listener import Listener

_HOST = "127.0.0.1"
_LOOK_S = 0.05
_PATIENCE_S = 60.0  # to load the draft and join


class LoopbackBack:
    """The back, and the port that it connects to, from `with` to its end."""

    def __init__(self, draft: ModelConfig, n_threads: int, target: Model, context: Context) -> None:
        """Listen. The process starts with the first text. Raises UsageError."""
        self._brief = Brief(SamplingConfig(), target.end_tokens())
        self._token = secrets.token_urlsafe()
        self._backs = Backs()
        self._backs.target = Target(Fingerprint.of(target), target.token_texts(target.n_vocab), context.n_ctx)
        self._listener = Listener(draft_app(self._backs, Door(self._token), Rules(hosts=frozenset((_HOST,)))), _HOST, 0)
        devices = [] if draft.devices is None else [f"--device={','.join(draft.devices) or 'none'}"]
        if draft.tensor_split:
            devices.append(f"--tensor-split={','.join(map(str, draft.tensor_split))}")
        self._command = [
            sys.executable, "-m", "duo", "back", "--until-eof", f"--lead=ws://{_HOST}:{self._listener.port}",
            f"--model={draft.path}", f"--threads={n_threads}", *devices,
            f"--split-mode={draft.split_mode}", f"--main-gpu={draft.main_gpu}",
            f"--gpu-layers={draft.n_gpu_layers if draft.n_gpu_layers >= 0 else 'all'}",
        ]  # fmt: skip
        self._process: Child | None = None

    def __enter__(self) -> LoopbackBack:
        """Serve the port."""
        self._listener.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process, then the port."""
        if self._process is not None:
            self._process.end()
        self._listener.close()

    def help(self, stop: threading.Event) -> Helpers:
        """The back, once it has joined, as the helper of one text.

        Raises LinkError if it ends or does not come, Interrupted.
        """
        self._join(stop)
        return self._backs.help_with(self._brief)

    def _join(self, stop: threading.Event) -> None:
        """Start the back if there is none, and return as soon as it has joined."""
        if self._process is None:
            self._process = Child(self._command, {"DUO_BACK_TOKEN": self._token})
        end = time.monotonic() + _PATIENCE_S
        while not self._backs.n_connected:
            if stop.wait(_LOOK_S):
                raise Interrupted
            if time.monotonic() > end:
                raise LinkError(f"the back did not join within {_PATIENCE_S:.0f} s: {self._process.last_words()}")
            if self._process.has_ended:
                raise LinkError(f"the back has ended: {self._process.last_words()}")
