"""Drafts that are not in this process: on other machines, or on RPC servers whose end would take it with them."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType
from typing import Any

from duo.cli.configs import draft_config, schedules
from duo.cli.interrupts import on_interrupt
from duo.cli.options import RunOptions
from duo.cli.output import progress_bar, say
from duo.cli.secrets import LOOPBACK_NAMES, back_token, is_loopback
from duo.cli.serving import as_target, hosts, in_url
from duo.config import ModelConfig
from duo.errors import UsageError, VocabularyError
from duo.link.backs import Backs
from duo.link.child import Child
from duo.link.worker import Door
from duo.llama.context import Context
from duo.llama.model import Model
from duo.llama.vocabulary import vocabulary_difference
from duo.models.profiles import restore
from duo.server.drafts import draft_app
from duo.server.guard import Rules
from duo.server.listener import Listener
from duo.spec.policy import Policy

_LOOPBACK = "127.0.0.1"
_LOOK_S = 0.1  # between two looks at a child that is starting
_PATIENCE_S = 10.0  # before the text begins without it


class Elsewhere:
    """All drafts of a command that are not in its process, from `with` to its end."""

    def __init__(self) -> None:
        self.backs = Backs()
        self._process: DraftProcess | None = None
        self._running = ExitStack()

    def __enter__(self) -> Elsewhere:
        """Nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what was started."""
        self._running.close()

    def listen(self, options: RunOptions) -> None:
        """Let backs on other machines join at --back-port. Raises UsageError."""
        token = back_token(options.back_token, options.back_token_file)
        if not token and not is_loopback(options.back_host):
            raise UsageError(
                f"--back-host {options.back_host}: other machines can reach this address, so backs must know a "
                "token: add --back-token TOKEN (or --back-token-file, DUO_BACK_TOKEN)"
            )
        app = draft_app(self.backs, Door(token), Rules(hosts=hosts(options.back_host, ())))
        listener = self._running.enter_context(Listener(app, options.back_host, options.back_port or 0))
        say(f"duo: taking drafts at ws://{in_url(options.back_host)}:{listener.port}")

    def add_process(self, options: RunOptions, draft: ModelConfig) -> None:
        """Let a draft on RPC servers take part. Raises UsageError."""
        self._process = self._running.enter_context(DraftProcess(options, draft, self.backs))

    def begin(self, target: Model, context: Context, *, starts: bool = True) -> None:
        """The target is loaded: backs may join, and the draft on RPC servers `starts` if it can help.

        Raises what DraftProcess.start() raises.
        """
        self.backs.target = as_target(target, context)
        if self._process is not None and starts:
            self._process.start(target)

    def restore(self, options: RunOptions, kept: dict[str, Any], mode: str) -> None:
        """Let the draft on RPC servers begin with what earlier runs have learned."""
        if self._process is not None:
            drafting = draft_config(options)
            policy = Policy(drafting.n_max, drafting.n_ahead, schedules(options)).for_draft_elsewhere()
            restore(policy, kept, mode)
            if policy.rate:
                self.backs.learned[self._process.model, mode] = policy.state()


class DraftProcess:
    """A draft on RPC servers, in a process of its own that speaks the link over this machine's loopback."""

    def __init__(self, options: RunOptions, draft: ModelConfig, backs: Backs) -> None:
        """Listen. Raises UsageError."""
        self.model = draft.path.stem
        self._draft = draft
        token = secrets.token_urlsafe()
        app = draft_app(backs, Door(token, is_own=True), Rules(hosts=frozenset(LOOPBACK_NAMES)))
        self._listener = Listener(app, _LOOPBACK, 0)
        self.name = f"the draft on {', '.join(draft.rpc_servers)}"
        self._child = Child(self.name, _arguments(options, draft, self._listener.port), token)
        self._running = ExitStack()

    def __enter__(self) -> DraftProcess:
        """Answer; the process is not yet started."""
        self._running.enter_context(self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process."""
        self._running.close()

    def start(self, target: Model) -> None:
        """Start the process, and wait until it is ready or has failed.

        Not for long: it may come later. Raises VocabularyError if the models do not fit, ModelError, UsageError, or
        SystemExit after an interruption.
        """
        here = replace(self._draft, n_gpu_layers=0, rpc_servers=(), devices=())
        with closing(Model(here, vocabulary_only=True)) as draft:
            if difference := vocabulary_difference(target, draft):
                raise VocabularyError(f"{draft.path.name} cannot draft for {target.path.name}: {difference}")
        self._running.enter_context(self._child)
        with progress_bar() as bar, on_interrupt(self._child.give_up) as interrupt:
            end = time.monotonic() + _PATIENCE_S
            while not self._child.wait(_LOOK_S) and time.monotonic() < end:
                bar(f"loading {self.name}", 0, None)
        if interrupt.signal:
            say("duo: interrupted while loading")
            raise SystemExit(interrupt.status)
        if self._child.usage_error is not None:
            raise UsageError(f"{self.name}: {self._child.usage_error}")
        if time.monotonic() >= end:
            say(f"duo: {self.name} is still loading: the target begins alone")


def _arguments(options: RunOptions, draft: ModelConfig, port: int) -> list[str]:
    """Those of `duo back` for this draft."""
    arguments = [
        f"--lead=ws://{_LOOPBACK}:{port}",
        f"--model={draft.path}",
        f"--gpu-layers={draft.n_gpu_layers if options.gpu_layers_draft.named else 'auto'}",
        f"--split-mode={draft.split_mode}",
        f"--main-gpu={draft.main_gpu}",
        f"--rpc={','.join(draft.rpc_servers)}",
        f"--rpc-timeout={draft.rpc_timeout_s}",
        f"--flash-attn={options.flash_attn.value}",
        f"--threads={options.threads_draft or 1}",
    ]
    if draft.devices is not None:
        arguments.append(f"--device={','.join(draft.devices) or 'none'}")
    if draft.tensor_split:
        arguments.append(f"--tensor-split={','.join(map(str, draft.tensor_split))}")
    arguments += ["--mlock"] * draft.use_mlock + ["--no-mmap"] * (not draft.use_mmap)
    return arguments
