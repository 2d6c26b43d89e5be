"""Loads models with a progress bar, which Ctrl-C interrupts, on the RPC servers and GPUs that the options name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from duo.cli.inputs import back_token
from duo.cli.options.groups import EngineOptions, GenerationOptions
from duo.cli.problems import CUDA, RPC, best_backend, build_with
from duo.cli.terminal.console import progress_bar, say, warn
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import EngineConfig
from duo.diagnose.host import read_host
from duo.engine import text
from duo.engine.cores import plan_threads
from duo.engine.engine import Engine
from duo.engine.slot import Slot
from duo.errors import DeviceError, UsageError
from duo.llama.build import CPU, hiding_variables
from duo.llama.devices import built_gpu_backends, gpus, list_devices
from duo.llama.library import supports_rpc
from duo.llama.model import Model
from duo.loading import load_engine

if TYPE_CHECKING:
    from duo.link.remote_drafts import RemoteDrafts

_HEAD = 4096  # characters of a prompt, in which its first special token is
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
    if config.back_port is not None:
        config = replace(config, back_token=_back_token(config, options.back_token_file))

    with interruptible(
        lambda show: load_engine(target, draft, config, remote_drafts=remote_drafts, progress=show)
    ) as engine:
        if options.is_demo:
            why = "" if options.names_target else "no model given (-m, -hf): "
            say(f"duo: {why}using the demo pair, SmolLM2-135M-Instruct in F16 and Q4_0")
        if hint := _draft_hint(engine.slot):
            say(f"duo: {hint}")
        if hint := _branches_hint(engine.slot, config.branches, config.schedule, is_rejection=is_rejection):
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


def _draft_hint(slot: Slot) -> str:
    """That the draft is not smaller than the target, and so useless; empty otherwise."""
    target, draft = slot.target, slot.draft_model
    if draft is None or draft.n_bytes < target.n_bytes:
        return ""
    sizes = f"{draft.n_bytes / 1e6:.0f} MB, the target {target.n_bytes / 1e6:.0f} MB"
    return f"the draft is not smaller than the target (it has {sizes}): are -m and -md exchanged?"


def _branches_hint(slot: Slot, branches: int | None, schedule: str, *, is_rejection: bool) -> str:
    """That there are no `branches`, if some were asked for; empty otherwise."""
    fits = slot.draft_model is not None and slot.can_speculate and slot.translation is None
    if not branches or (fits and schedule in ("auto", "async") and not is_rejection):
        return ""
    needed = "the schedule async and a draft in this process that can roll back and has the target's vocabulary"
    return f"--branches {branches} has no effect: it needs {needed}, and not --verify rejection"


def prompt_hint(model: Model, prompt: str) -> str:
    """That a raw `prompt` is not in the model's chat template, if it has one; empty otherwise."""
    # Special tokens that are written out have no text; the BOS that is added does not count.
    is_raw = all(model.piece(token) for token in model.tokenize(prompt[:_HEAD], add_bos=False))
    has_template = bool(model.metadata("tokenizer.chat_template"))
    return "this model has a chat template: --chat uses it" if has_template and is_raw else ""


def empty_hint(stop: str, n_predict: int) -> str:
    """Why an answer of at most `n_predict` tokens has no text; `stop`: why it ended."""
    reasons = {
        text.LIMIT: "its tokens have no text" if n_predict else "-n 0 only processes the prompt",
        text.END_OF_TEXT: "the model ended the text at once (--ignore-eos continues)",
        text.STOP_STRING: "it began with a stop string (-r)",
        text.CONTEXT_FULL: "the prompt fills the context (-c)",
        text.GRAMMAR_END: "the grammar allows no text",
    }
    return f"the answer is empty: {reasons[stop]}" if stop in reasons else ""


def with_servers(options: EngineOptions) -> EngineConfig:
    """How the engine is loaded, with the servers of each model.

    Those of --rpc are the draft's; with --rpcd, or without a draft, the target's. With `--draft 0` those of the draft
    are checked, but not used. Raises UsageError, or DeviceError if llama.cpp was built without RPC.
    """
    named, for_draft = tuple(options.engine.rpc_servers), options.engine.draft_rpc_servers
    check_rpc(named or for_draft)
    if for_draft and not options.has_draft:
        raise UsageError("--rpcd without a draft: name one with -md or -hfd, or use --rpc for the target")
    if for_draft is None and options.has_draft:
        named, for_draft = (), named
    config = replace(options.engine, rpc_servers=named, draft_rpc_servers=tuple(for_draft or ()))
    check_servers(config)
    return config if config.draft_n_max != 0 else replace(config, draft_rpc_servers=())


def check_servers(config: EngineConfig) -> None:
    """Raise UsageError for servers that cannot be used, or DeviceError if llama.cpp was built without RPC."""
    for_draft = config.draft_rpc_servers or ()
    check_rpc((*config.rpc_servers, *for_draft))
    found = set()
    for server in (*config.rpc_servers, *for_draft):
        if server in found:
            message = "a server has one client at a time: start another one on that machine, on another port"
            raise UsageError(f"{server} is named twice, but {message}")
        found.add(server)
    for servers, layers, devices in (
        (config.rpc_servers, config.n_gpu_layers, config.devices),
        (for_draft, config.draft_n_gpu_layers, config.draft_devices),
    ):
        if servers and (layers == 0 or devices == ()):
            unused = "with 0 layers (-ngl, -ngld) or -dev none (-devd none) the server is not used"
            raise UsageError(f"--rpc {servers[0]}: {unused}")


def check_rpc(servers: Sequence[str] | None) -> None:
    """Raise DeviceError if there are servers, but llama.cpp was built without RPC."""
    if servers and not supports_rpc():
        raise DeviceError(f"llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")


def check_gpu(config: EngineConfig, *, has_draft: bool) -> None:
    """Warn of options that need a GPU if there is none. Raises UsageError for named devices."""
    if gpus():
        return
    named: dict[str, object] = {}
    asked: dict[str, object] = {}
    if not config.rpc_servers:
        named["-dev"] = config.devices
        asked = {"-ngl": config.n_gpu_layers not in ("auto", 0), "-sm": config.split_mode != "layer"}
        asked |= {"-ts": config.tensor_split, "-mg": config.main_gpu}
    if has_draft and not config.draft_rpc_servers:
        named["-devd"] = config.draft_devices
        asked["-ngld"] = config.draft_n_gpu_layers not in ("auto", 0)
    if not any((*named.values(), *asked.values())):
        return
    command = build_with(best_backend(read_host()) or CUDA)
    why = no_gpu_found() or f"llama.cpp was built without a GPU backend; to build it with one: {command}"
    if any(named.values()) and all(device.kind == CPU for device in list_devices()):
        raise UsageError(f"{_given(named)}: {why}")
    if flags := _given(asked):
        warn(f"{flags}: all layers stay on the CPU: {why}")


def _given(options: dict[str, object]) -> str:
    return " and ".join(flag for flag, value in options.items() if value)


def no_gpu_found() -> str | None:
    """What is wrong if llama.cpp was built for GPUs but finds none; otherwise None."""
    built = built_gpu_backends()
    if gpus() or not built:
        return None
    values = [f"{name}={shlex.quote(value)}" for name, value in hiding_variables(built).items()]
    suspects = f" with {' and '.join(values)}" if values else ""
    return f"llama.cpp finds no GPU for {', '.join(built)}{suspects} (see duo doctor)"
