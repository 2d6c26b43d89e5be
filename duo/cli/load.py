"""Loads models with a progress bar, which Ctrl-C interrupts, on the RPC servers and GPUs that the options name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from duo.cli.installation import CUDA, best_backend, build_with, require_rpc, values_of
from duo.cli.options import EngineOptions, GenerationOptions, back_token, only_one, read_file
from duo.cli.terminal.console import note, progress_bar, warn
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import EngineConfig
from duo.diagnose.host import read_host
from duo.engine import statistics as text
from duo.engine.cores import plan_threads
from duo.engine.engine import Engine
from duo.engine.model_pair import ModelPair
from duo.errors import UsageError
from duo.llama.build import CPU, hiding_variables
from duo.llama.devices import built_gpu_backends, gpus, list_devices
from duo.llama.model import Model
from duo.loading import load_engine
from duo.models.storage import MIB
from duo.speculation.memory import END

if TYPE_CHECKING:
    from duo.remote.drafts import RemoteDrafts

_HEAD = 4096  # characters of a prompt, in which its first special token is
Loaded = TypeVar("Loaded", Engine, Model)
Show = Callable[[str, float, float | None], bool]


def loaded(options: EngineOptions, n_predict: int, *, remote_drafts: RemoteDrafts | None = None) -> Engine:
    """The engine that the options describe, for `n_predict` tokens. Raises DuoError, or SystemExit after Ctrl-C."""
    plan_threads(options.engine, drafting=False)  # checks them before anything is downloaded
    target, draft = options.model_names()
    config = replace(with_servers(options), n_predict=n_predict)
    templates = {"--chat-template": config.chat_template, "--chat-template-file": options.chat_template_file}
    only_one("both give the template", templates)
    if options.chat_template_file is not None:
        config = replace(config, chat_template=read_file(options.chat_template_file, limit=MIB)[1])
    if options.has_draft and not isinstance(options, GenerationOptions):  # it is the draft that is measured
        config = replace(config, heads="off")
    is_rejection = isinstance(options, GenerationOptions) and options.generation.is_rejection
    if is_rejection and (config.back_port is not None or config.draft_rpc_servers):
        raise UsageError("--verify rejection needs the draft's probabilities, which remote and RPC drafts do not send")
    check_gpu(config, has_draft=config.draft_n_max != 0 and options.has_draft)
    if config.back_port is not None:
        config = replace(config, back_token=back_token(config.back_token, options.back_token_file))

    load = partial(load_engine, target, draft, config, remote_drafts=remote_drafts)
    engine = load_interruptibly(lambda show: load(progress=show))
    if options.is_demo:
        why = "" if options.names_target else "no model given (-m, -hf): "
        note(f"{why}using the demo pair, SmolLM2-135M-Instruct in F16 and Q4_0")
    if (kept := engine.slot.memories.kept) is not None:
        n_tokens = int((kept.log != END).sum())
        note(f"{config.memory}: a memory of {n_tokens} tokens" if n_tokens else f"{config.memory}: a new memory")
    _say_what_is_unusual(engine.slot, config, is_rejection=is_rejection, is_lead=remote_drafts is not None)
    return engine


def load_interruptibly(load: Callable[[Show], Loaded]) -> Loaded:
    """What `load` returns; its argument shows progress and returns False after Ctrl-C. Raises SystemExit then."""
    found = None
    with on_interrupt(lambda: None) as interrupt, progress_bar("") as bar:

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
        note("interrupted while loading")
        raise SystemExit(interrupt.status)
    assert found is not None
    return found


def _say_what_is_unusual(slot: ModelPair, config: EngineConfig, *, is_rejection: bool, is_lead: bool = False) -> None:
    target, draft = slot.target, slot.draft_model
    if draft is not None and draft is not target and draft.n_bytes >= target.n_bytes:
        sizes = f"{draft.n_bytes / 1e6:.0f} MB, the target {target.n_bytes / 1e6:.0f} MB"
        note(f"the draft is not smaller than the target (it has {sizes}): are -m and -md exchanged?")
    if slot.in_turns and config.schedule == "async":
        warn("--schedule async has no effect: a head that shares the context or the cache of the target takes turns")
    can_prepare = draft is not None and slot.can_speculate and slot.translation is None and not slot.uses_head
    # A draft on RPC servers is a worker that cannot prepare; others may connect to a port, or to a lead.
    takes_others = is_lead or config.back_port is not None or not config.draft_rpc_servers
    can_prepare = can_prepare or (slot.remote is not None and takes_others)
    if config.branches and (is_rejection or config.schedule not in ("auto", "async") or not can_prepare):
        needed = (
            "the schedule async, no --verify rejection, and a draft that can roll back, has the target's vocabulary"
        )
        warn(f"--branches {config.branches} has no effect: it needs {needed} and is not on RPC servers")


def say_if_fewer_at_once(slot: ModelPair) -> None:
    """What must not, or cannot, be written together although several texts may be."""
    n, asked = slot.n_together, slot.config.n_slots
    if n < asked and n == 1:
        why = "with --exact" if slot.config.exact else "the cache of this model and its draft cannot hold several"
        note(f"texts are written one at a time: {why}")
    elif n < asked:
        note(f"-np {asked}: {n} texts are written together, and the KV caches of {asked} conversations are kept")


def prompt_hint(model: Model, prompt: str) -> str:
    """That a raw `prompt` is not in the model's chat template, if it has one; empty otherwise."""
    # Special tokens that are written out have no text; the BOS that is added does not count.
    is_raw = all(model.piece(token) for token in model.tokenize(prompt[:_HEAD], add_bos=False))
    has_template = bool(model.header.text("tokenizer.chat_template"))
    return "this model has a chat template: --chat uses it" if has_template and is_raw else ""


def empty_hint(stop: str, n_predict: int) -> str:
    """Why an answer of at most `n_predict` tokens has no text; `stop`: why it ended."""
    reason = {
        text.LIMIT: "its tokens have no text" if n_predict else "-n 0 only processes the prompt",
        text.END_OF_TEXT: "the model ended the text at once (--ignore-eos continues)",
        text.STOP_STRING: "it began with a stop string (-r)",
        text.CONTEXT_FULL: "the prompt fills the context (-c)",
        text.GRAMMAR_END: "the grammar allows no text",
    }.get(stop)
    return f"the answer is empty: {reason}" if reason else ""


def with_servers(options: EngineOptions) -> EngineConfig:
    """How the engine is loaded. The servers of --rpc are the draft's; with --rpcd, or without a draft, the target's.

    With `--draft 0` those of the draft are checked, but not used. Raises as check_servers() does.
    """
    named, for_draft = tuple(options.engine.rpc_servers), options.engine.draft_rpc_servers
    if for_draft and not options.has_draft:
        raise UsageError("--rpcd without a draft: name one with -md or -hfd, or use --rpc for the target")
    if for_draft is None and options.has_draft:
        named, for_draft = (), named
    config = replace(options.engine, rpc_servers=named, draft_rpc_servers=tuple(for_draft or ()))
    check_servers(config)
    return config if config.draft_n_max != 0 else replace(config, draft_rpc_servers=())


def check_servers(config: EngineConfig) -> None:
    """Raise UsageError for servers that cannot be used, or DeviceError if llama.cpp was built without RPC."""
    for_target, for_draft = config.rpc_servers, config.draft_rpc_servers or ()
    servers = [*for_target, *for_draft]
    if servers:
        require_rpc()
    if twice := [server for server in servers if servers.count(server) > 1]:
        message = "a server has one client at a time: start another one on that machine, on another port"
        raise UsageError(f"{twice[0]} is named twice, but {message}")
    unused = for_target and (config.n_gpu_layers == 0 or config.devices == ())
    if unused or (for_draft and (config.draft_n_gpu_layers == 0 or config.draft_devices == ())):
        raise UsageError("--rpc: with 0 layers (-ngl, -ngld) or -dev none (-devd none) a server is not used")


def check_gpu(config: EngineConfig, *, has_draft: bool) -> None:
    """Warn of options that need a GPU if there is none. Raises UsageError for named devices."""
    target, draft = not config.rpc_servers, has_draft and not config.draft_rpc_servers
    devices = {"-dev": target and config.devices, "-devd": draft and config.draft_devices}
    layers = {
        "-ngl": target and config.n_gpu_layers not in ("auto", 0),
        "-sm": target and config.split_mode != "layer",
        "-ts": target and config.tensor_split,
        "-mg": target and config.main_gpu,
        "-ngld": draft and config.draft_n_gpu_layers not in ("auto", 0),
    }
    named, asked = (" and ".join(filter(given.get, given)) for given in (devices, layers))
    if not (named or asked) or gpus():
        return
    command = build_with(best_backend(read_host()) or CUDA)
    why = no_gpu_found() or f"llama.cpp was built without a GPU backend; to build it with one: {command}"
    if named and all(device.kind == CPU for device in list_devices()):
        raise UsageError(f"{named}: {why}")
    if asked:
        warn(f"{asked}: all layers stay on the CPU: {why}")


def no_gpu_found() -> str | None:
    """What is wrong if llama.cpp was built for GPUs but finds none; otherwise None."""
    built = built_gpu_backends()
    if gpus() or not built:
        return None
    variables = hiding_variables(built)
    suspects = f" with {values_of(variables, variables)}" if variables else ""
    return f"llama.cpp finds no GPU for {', '.join(built)}{suspects} (see duo doctor)"
