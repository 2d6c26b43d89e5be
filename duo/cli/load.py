"""Loads models with a progress bar; Ctrl-C interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from duo.cli.devices import check_gpu, with_servers
from duo.cli.hints import branches_hint, draft_hint
from duo.cli.inputs import back_token
from duo.cli.options.groups import BackTokenFile, EngineOptions, GenerationOptions
from duo.cli.terminal.console import progress_bar, say, warn
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import EngineConfig
from duo.engine.cores import plan_threads
from duo.engine.engine import Engine
from duo.errors import UsageError
from duo.llama.model import Model
from duo.loading import load_engine

if TYPE_CHECKING:
    from duo.link.remote_drafts import RemoteDrafts

Loaded = TypeVar("Loaded", Engine, Model)
Show = Callable[[str, float, float | None], bool]


def check_usage(config: EngineConfig) -> None:
    """Check what a config says about threads before anything is downloaded or loaded. Raises UsageError."""
    plan_threads(config, drafting=False)


@contextmanager
def loaded(options: EngineOptions, n_predict: int, *, remote_drafts: RemoteDrafts | None = None) -> Iterator[Engine]:
    """The engine that the options describe, for texts of `n_predict` tokens.

    Raises DuoError, or SystemExit after Ctrl-C.
    """
    target, draft = options.model_names()
    config = replace(with_servers(options), n_predict=n_predict)
    is_rejection = isinstance(options, GenerationOptions) and options.generation.is_rejection
    if is_rejection and (config.back_port is not None or config.draft_rpc_servers):
        raise UsageError("--verify rejection needs the draft's probabilities, which remote and RPC drafts do not send")
    check_gpu(config, has_draft=config.draft_n_max != 0 and options.has_draft)
    if config.back_port is not None and isinstance(options, BackTokenFile):
        config = replace(config, back_token=_back_token(config, options.back_token_file))

    with interruptible(
        lambda show: load_engine(target, draft, config, remote_drafts=remote_drafts, progress=show)
    ) as engine:
        if options.is_demo:
            why = "" if options.names_target else "no model given (-m, -hf): "
            say(f"duo: {why}using the demo pair, SmolLM2-135M-Instruct in F16 and Q4_0")
        if hint := draft_hint(engine.slot):
            say(f"duo: {hint}")
        if hint := branches_hint(engine.slot, config.branches, config.schedule, is_rejection=is_rejection):
            warn(hint)
        with engine:
            yield engine


@contextmanager
def interruptible(load: Callable[[Show], Loaded]) -> Iterator[Loaded]:
    """What `load` returns; its argument shows progress and returns False after Ctrl-C. Raises SystemExit then."""
    found = None
    with on_interrupt(lambda: None) as interrupt, progress_bar() as bar:

        def show(description: str, done: float, total: float | None) -> bool:
            bar(description, done, total)
            return not interrupt.signal

        try:
            found = load(show)
        except Exception:
            if not interrupt.signal:
                raise
    if interrupt.signal:
        if found is not None:
            found.close()
        say("duo: interrupted while loading")
        raise SystemExit(interrupt.status)
    assert found is not None
    yield found


def _back_token(config: EngineConfig, file: Path | None) -> str:
    """The token of remote drafts. Raises UsageError if one is required and missing."""
    from duo.link.guard import is_loopback  # noqa: PLC0415 - it imports a server's packages

    token = back_token(config.back_token, file)
    if not token and not is_loopback(config.back_host):
        raise UsageError(
            f"--back-host {config.back_host}: other machines can reach this address, so remote drafts must send a "
            "token: add --back-token TOKEN (or --back-token-file, DUO_BACK_TOKEN)"
        )
    return token
