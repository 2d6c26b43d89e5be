"""Load models with a progress bar, heeding Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol, TypeVar

from duo.cli.devices import check_gpu, rpc_servers
from duo.cli.options.engine import EngineOptions
from duo.cli.options.secrets import back_token
from duo.cli.terminal.console import progress_bar, say
from duo.cli.terminal.interrupts import on_interrupt
from duo.engine.engine import Engine
from duo.engine.threads import plan_threads
from duo.errors import UsageError
from duo.link.guard import is_loopback
from duo.loading import load

if TYPE_CHECKING:
    from duo.link.remote_drafts import RemoteDrafts


class Closable(Protocol):
    """What is loaded."""

    def close(self) -> None:
        """Free it."""
        ...


T = TypeVar("T", bound=Closable)
Show = Callable[[str, float, float | None], bool]


def check_usage(options: EngineOptions) -> None:
    """Find out what cannot be meant like this before anything is fetched or loaded. Raises UsageError."""
    config = options.engine_config()
    threads = plan_threads(config, drafting=False)
    config.context(1, threads.target, threads.target_batch, config.drafting().n_max)


@contextmanager
def loaded(options: EngineOptions, *, remote_drafts: RemoteDrafts | None = None) -> Iterator[Engine]:
    """The engine that the options ask for. Raises DuoError, or SystemExit after an interruption."""
    target, draft = options.model_names()
    servers = rpc_servers(options)
    check_gpu(options, servers, has_draft=options.draft != 0 and options.has_draft)
    token = _back_token(options) if options.back_port is not None else ""

    def assemble(show: Show) -> Engine:
        return load(
            target,
            draft,
            **asdict(options.engine_config()),
            n_gpu_layers=int(options.gpu_layers) if options.gpu_layers.named else "auto",
            draft_n_gpu_layers=int(options.gpu_layers_draft) if options.gpu_layers_draft.named else "auto",
            devices=options.device,
            draft_devices=options.device_draft,
            split_mode=options.split_mode.value,
            draft_split_mode=options.split_mode_draft.value,
            tensor_split=options.tensor_split or (),
            draft_tensor_split=options.tensor_split_draft or (),
            main_gpu=options.main_gpu,
            draft_main_gpu=options.main_gpu_draft,
            rpc_servers=servers.target,
            draft_rpc_servers=servers.draft,
            rpc_timeout_s=options.rpc_timeout,
            use_mmap=options.mmap,
            use_mlock=options.mlock,
            offline=options.offline,
            profile=options.profile,
            back_port=options.back_port,
            back_host=options.back_host,
            back_token=token,
            remote_drafts=remote_drafts,
            progress=show,
        )

    with interruptible(assemble) as engine:
        if options.is_demo:
            say("duo: no model was named (-m, -hf): this is the demo pair, SmolLM2-135M-Instruct in F16 and Q4_0")
        with engine:
            yield engine


@contextmanager
def interruptible(load: Callable[[Show], T]) -> Iterator[T]:
    """What `load` returns, which is given a progress bar that tells it to stop. Raises SystemExit after Ctrl-C."""
    with on_interrupt(lambda: None) as interrupt:
        try:
            with progress_bar() as bar:

                def show(description: str, done: float, total: float | None) -> bool:
                    bar(description, done, total)
                    return not interrupt.signal

                found = load(show)
        except Exception:
            if not interrupt.signal:
                raise
            _leave(interrupt.status)
    if interrupt.signal:
        found.close()
        _leave(interrupt.status)
    yield found


def _leave(status: int) -> None:
    say("duo: interrupted while loading")
    raise SystemExit(status)


def _back_token(options: EngineOptions) -> str:
    """What drafts on other machines must know. Raises UsageError."""
    token = back_token(options.back_token, options.back_token_file)
    if not token and not is_loopback(options.back_host):
        raise UsageError(
            f"--back-host {options.back_host}: other machines can reach this address, so backs must know a "
            "token: add --back-token TOKEN (or --back-token-file, DUO_BACK_TOKEN)"
        )
    return token
