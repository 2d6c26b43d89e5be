"""load(): an Engine from the names of models, with local and remote drafts."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from duo.config import DEMO, EngineConfig, ModelConfig
from duo.config.option import check_names, declared
from duo.engine.engine import Engine
from duo.engine.memories import KeptMemory, Memories
from duo.engine.model_pair import LAYER, ModelPair
from duo.engine.profile import Profiles, find_profiles
from duo.engine.recorder import SHARED, TRANSLATED
from duo.engine.stream import background
from duo.engine.translated import Translation
from duo.errors import ModelError, UsageError
from duo.llama.devices import devices_for
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.gguf_header import GgufHeader, check_not_head, head_kind, may_fit, named
from duo.llama.heads import check_pair
from duo.llama.limits import available_bytes
from duo.llama.model import Model
from duo.models.demo import demo_pair
from duo.models.draft_files import family_of
from duo.models.fitting import expected_context, fit
from duo.models.hub import check_gguf, find_model, select_block
from duo.models.memory_file import MemoryFile, check_place
from duo.remote.drafts import RemoteDrafts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from duo.config.settings import Settings
    from duo.remote.process import OwnWorker

log = logging.getLogger("duo.loading")

_BETTER = "A draft with the target's vocabulary is accepted more often (`duo list` shows which models share one)."

ModelName = str | os.PathLike[str]

# Called with a description, the amount done and the total (None: unknown). Returning False cancels.
Progress = Callable[[str, float, float | None], bool | None]
Show = Callable[[str, float, float | None], None]  # the same, and raises if it is cancelled
T = TypeVar("T")


def load(
    target: ModelName,
    draft: ModelName | None = None,
    *,
    remote_drafts: RemoteDrafts | None = None,
    progress: Progress = lambda *_: None,
    **settings: Unpack[Settings],
) -> Engine:
    """Load a target and, optionally, a draft that makes it faster without changing what it generates.

    `target` and `draft` are paths, `hf://user/repo:Q4_K_M`, or names as for llama.cpp's -hf; the target "demo" is a
    small pair that duo downloads. The settings are the fields of duo.config.EngineConfig, named as in llama-cpp-python,
    with the prefix `draft_` for the draft's; docs/python.md has a list. Defaults are chosen for the models and the
    machine, and improved by what is learned while running.

    remote_drafts: those of a lead that is already listening.
    progress: called on a background thread with a description, the amount done and the total; False cancels.

    Raises ModelError, MemoryLimitError, DownloadError, DeviceError or UsageError, and TypeError for an unknown setting.
    """
    known = (one.name for one in declared(EngineConfig()))
    check_names(settings, [*known, "remote_drafts", "progress"])
    return load_engine(target, draft, EngineConfig(**settings), remote_drafts=remote_drafts, progress=progress)


def load_engine(
    target: ModelName,
    draft: ModelName | None,
    config: EngineConfig,
    *,
    remote_drafts: RemoteDrafts | None = None,
    progress: Progress = lambda *_: None,
) -> Engine:
    """load(), with its settings as a config."""
    if config.memory not in (None, "off"):
        check_place(Path(config.memory))
    names = (target, None if config.draft_n_max == 0 else draft)
    return in_background(lambda show: _load(names, config, remote_drafts, show), progress)


def in_background(work: Callable[[Show], T], progress: Progress) -> T:
    """What `work` returns, on a background thread. Its argument shows progress, and raises ModelError to stop."""

    def run(put: Callable[[T], None], stop: threading.Event) -> None:
        def show(description: str, done: float, total: float | None) -> None:
            if progress(description, done, total) is False or stop.is_set():
                raise ModelError(f"{description}: stopped")

        put(work(show))

    with background(run, "duo-load") as loading:
        (loaded,) = loading
    return loaded


def load_model(config: ModelConfig, show: Show) -> Model:
    """A model. Raises ModelError, MemoryLimitError, DeviceError, and what `show` raises."""
    raised: list[BaseException] = []

    def on_progress(share: float) -> bool:
        try:
            show(f"loading {config.path.name}", share, 1.0)
        except BaseException as error:  # raised below: it cannot propagate through llama.cpp
            raised.append(error)
        return not raised

    try:
        return Model(config, on_progress)
    except ModelError as error:
        raise (raised or [error])[0] from None


def _load(
    names: tuple[ModelName, ModelName | None], config: EngineConfig, drafts: RemoteDrafts | None, show: Show
) -> Engine:
    with ExitStack() as stack:
        if config.back_port is not None:
            drafts = _listen(config, config.back_port, stack)
        target_config, draft_config, beside = _find(names, config, show)
        configs = [one for one in (target_config, draft_config, beside) if one is not None]
        here = [one for one in configs if one is target_config or not one.rpc_servers]
        _check_weights(here)
        is_found = draft_config is not None and names[1] is None and bool(head_kind(GgufHeader(draft_config.path)))
        given = [one for one in here if one is not beside and not (is_found and one is draft_config)]
        models = [stack.enter_context(closing(load_model(one, show))) for one in given]
        target, draft = models[0], models[1] if len(models) > 1 else None
        if target.head_kind:
            why = "it is a draft, for the model that it was made for"
            raise ModelError(f"{target.path}: {named(target.head_kind)}: {why}")
        translation = None
        if is_found and draft_config is not None:  # nobody has asked for it
            draft = _loaded_beside(draft_config, target, show, stack)
            draft = _mtp(target) if draft is None and target.has_mtp else draft
        elif draft is not None and draft.head_kind:
            check_pair(target, draft)
        elif draft is not None and _differs(target, draft):
            translation = Translation(target, draft)
        elif draft_config is None and target.has_mtp:
            draft = _mtp(target)
        head = _mtp(target) if target.has_mtp and draft not in (None, target) and not is_found else None
        if head is None and beside is not None:
            head = _loaded_beside(beside, target, show, stack)
        drafting = {LAYER if one is target else one.path.stem: one.config for one in (draft, head) if one is not None}
        remote = draft_config if draft_config is not None and draft_config.rpc_servers else None
        if remote is not None:
            drafting[remote.path.stem] = remote
        profiles = _profiles(config, target_config, drafting)
        if remote is not None:
            drafts = drafts or RemoteDrafts()
            drafts.on_ready = stack.enter_context(_own_worker(config, remote, target, drafts)).start
            drafts.restore(profiles)
        slot = ModelPair(target, draft, config, drafts, profiles, translation, head=head)
        if config.memory not in (None, "off"):
            slot.memories = Memories(kept := KeptMemory(MemoryFile(Path(config.memory), target)))
            stack.callback(kept.write)
            if slot.lookup is None or config.schedule == "off":
                log.warning("the memory is not used: it needs the lookup, which is off")
        stack.callback(_keep, profiles, slot, drafts)
        return Engine(slot, stack.pop_all())


def _listen(config: EngineConfig, port: int, stack: ExitStack) -> RemoteDrafts:
    """The drafts that connect. One that does before the target is loaded connects again. Raises UsageError."""
    # The server's packages take longer to import than all others of duo, and only remote drafts need them.
    from duo.http.guard import in_url, is_loopback  # noqa: PLC0415
    from duo.http.listener import Listener  # noqa: PLC0415
    from duo.remote.connection import Admission, draft_app  # noqa: PLC0415

    host, token, drafts = config.back_host, config.back_token or "", RemoteDrafts()
    if not token and not is_loopback(host):
        why = "other machines can reach this address, so remote drafts must send a token: add back_token"
        raise UsageError(f"back_host {host}: {why}", "back_host")
    listener = stack.enter_context(Listener(draft_app(drafts, Admission(token), host), host, port))
    log.info("listening for remote drafts at ws://%s:%d", in_url(host), listener.port)
    return drafts


def _find(
    names: tuple[ModelName, ModelName | None], config: EngineConfig, show: Show
) -> tuple[ModelConfig, ModelConfig | None, ModelConfig | None]:
    """The target, its draft, and a block draft beside both: downloaded if necessary, and with their layers placed."""
    name, draft_name = names
    draft_path: Path | None = None
    block_path: Path | None = None
    if name == DEMO:
        if draft_name is not None:
            raise UsageError("the demo pair includes its own draft: name a target to use with this one")
        path, draft_path = demo_pair(show, offline=config.offline)
        draft_path = None if config.draft_n_max == 0 else draft_path
    else:
        for local in names:
            if isinstance(local, os.PathLike):
                check_gguf(Path(local))  # before anything is downloaded
        remote = config.rpc_servers or config.draft_rpc_servers or config.back_port is not None
        takes_block = "off" not in (config.heads, config.schedule) and config.draft_n_max != 0 and not remote
        takes_block = takes_block and (draft_name is None or config.schedule == "auto")  # forced on the draft
        path = find_model(name, offline=config.offline, with_block=takes_block)
        draft_path = find_model(draft_name, offline=config.offline) if draft_name is not None else None
        block_path = _block_beside(path) if takes_block else None
        if draft_path is None:
            draft_path, block_path = block_path, None
    has_head = draft_path is not None and bool(head_kind(GgufHeader(draft_path)))
    is_asked = draft_name is not None  # else an MTP layer drafts if the block draft turns out not to fit
    target = config.target_model(path, has_draft=draft_path is not None, has_head=has_head and is_asked)
    draft = config.draft_model(draft_path) if draft_path is not None else None
    for part in [*target.shards, *(draft.shards if draft is not None else ())]:
        check_gguf(part)
    target, draft = fit(target, draft, expected_context(config))
    if block_path is None or draft is None or has_head:
        return target, draft, None
    return target, draft, replace(draft, path=block_path, overrides=())


def _block_beside(path: Path) -> Path | None:
    """The block draft beside a model, if it was made for it, as far as headers can tell."""
    for name in select_block([each.name for each in path.parent.glob("*.gguf")], path.name):
        target = GgufHeader(path)
        try:
            check_gguf(path.parent / name)
            draft = GgufHeader(path.parent / name)
        except ModelError as error:
            _say_unused(path.parent / name, error)
            continue
        if may_fit(draft, target) and draft.shares_vocabulary(target) and not head_kind(target):
            return path.parent / name
        log.info("%s was not made for %s", name, path.name)
    return None


def _own_worker(config: EngineConfig, draft: ModelConfig, target: Model, drafts: RemoteDrafts) -> OwnWorker:
    """The worker for a draft on RPC servers, which alone ends if a server fails."""
    from duo.remote.process import BATCH, OwnWorker, WorkerPlan  # noqa: PLC0415 - as in _listen()

    here = replace(draft, n_gpu_layers=0, rpc_servers=(), devices=())
    check_not_head(GgufHeader(draft.path))
    with closing(Model(here, vocabulary_only=True)) as model:
        differs = _differs(target, model)
    drafts.vocabulary = TRANSLATED if differs else SHARED
    n_threads = config.draft_n_threads or 1
    context = config.context(2 * config.drafting().n_max, n_threads, n_threads, 0)
    context = replace(context, exact=False, type_k="f16", type_v="f16", n_ubatch=BATCH)
    name, vocabulary = f"the draft on {', '.join(draft.rpc_servers)}", target.path if differs else None
    return OwnWorker(name, WorkerPlan("", draft, context, vocabulary, config.warmup), drafts)


def _profiles(config: EngineConfig, target: ModelConfig, drafts: Mapping[str, ModelConfig]) -> Profiles:
    """The profiles of the target and its drafts; none if they are disabled or there is no config directory."""
    if not config.profile or (not drafts and config.lookup == "off"):
        return Profiles()
    try:
        return find_profiles(config, target, drafts)
    except UsageError as error:
        log.warning("%s: the profile of this pair is not stored", error)
        return Profiles()


def _keep(profiles: Profiles, slot: ModelPair, drafts: RemoteDrafts | None) -> None:
    """Store what was learned."""
    target, learned = slot.recorder.state()
    if drafts is not None and not slot.recorder.n_others:
        learned = drafts.learned | learned
    try:
        profiles.save(target, learned)
    except OSError as error:
        log.warning("could not store the profile in %s: %s (profile=False disables it)", error.filename, error.strerror)


def _differs(target: Model, draft: Model) -> bool:
    """Whether the draft has another vocabulary; logs the reason."""
    difference = vocabulary_difference(target, draft)
    if difference:
        family = family_of((target.path.name, target.header.text("general.name")))
        better = family.advice if family is not None else _BETTER
        log.info("%s drafts for %s through the text: %s. %s", draft.path.name, target.path.name, difference, better)
    return difference is not None


def _fitting(target: Model, head: Model) -> Model | None:
    """The head, if it was made for the target."""
    try:
        check_pair(target, head)
    except ModelError as error:
        _say_unused(head.path, error)
        return None
    return head


def _say_unused(path: Path, error: ModelError) -> None:
    log.warning("%s is not used: %s", path, str(error).removeprefix(f"{path}: "))


def _loaded_beside(config: ModelConfig, target: Model, show: Show, stack: ExitStack) -> Model | None:
    """The block draft beside a model, if it can be loaded and was made for it."""
    with ExitStack() as own:
        try:
            head = _fitting(target, own.enter_context(closing(load_model(config, show))))
        except ModelError as error:
            _say_unused(config.path, error)
            return None
        if head is not None:
            layer = ", and its MTP layer does not" if target.has_mtp else ""
            log.info("%s drafts for %s%s (heads off: it does not)", config.path.name, target.path.name, layer)
            head.was_found = True
            stack.push(own.pop_all())
        return head


def _mtp(target: Model) -> Model | None:
    """The target, if its MTP layer can draft here."""
    try:
        check_pair(target, target)
    except ModelError as error:
        log.warning("the MTP layer of %s is not used: %s", target.path.name, error)
        return None
    log.info("%s has an MTP layer, which drafts (heads off: it does not)", target.path.name)
    return target


def _check_weights(configs: Sequence[ModelConfig]) -> None:
    """Warn if the weights exceed the available memory."""
    on_host = [config for config in configs if not devices_for(config)]
    size = sum(part.stat().st_size for config in on_host for part in config.shards)
    available = available_bytes()
    if available is not None and size > available:
        log.warning(
            "the weights (%.1f GiB) are larger than the available memory (%.1f GiB): they may be read from disk again "
            "for every token",
            size / 2**30,
            available / 2**30,
        )
