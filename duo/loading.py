"""load(): an Engine from the names of models. Stands above link/, because remote drafts are among what it assembles."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from duo.config import ALL_LAYERS, DEMO, SPLIT_MODES, EngineConfig, ModelConfig
from duo.engine.background import Background
from duo.engine.cores import usable_cores
from duo.engine.engine import Engine
from duo.engine.slot import Slot
from duo.errors import ModelError, UsageError, VocabularyError
from duo.link.guard import Rules, allowed_hosts, in_url, is_loopback
from duo.link.listener import Listener
from duo.link.process import DRAFT_BATCH, DraftProcess
from duo.link.remote_draft import Admission
from duo.link.remote_drafts import RemoteDrafts
from duo.link.route import draft_app
from duo.llama import library
from duo.llama.context import CACHE_TYPES
from duo.llama.devices import list_devices
from duo.llama.memory import available_bytes
from duo.llama.model import Model
from duo.llama.offload import devices_for
from duo.llama.vocabulary import vocabulary_difference
from duo.models.demo import demo_pair
from duo.models.fitting import expected_context, fit
from duo.models.paths import check_gguf, find_model
from duo.models.profiles import Profile

log = logging.getLogger("duo.loading")

ModelName = str | os.PathLike[str]

# Told what is done, how far, and of how much (None: nobody knows). What it returns: False stops.
Progress = Callable[[str, float, float | None], bool | None]


def load(
    target: ModelName,
    draft: ModelName | None = None,
    *,
    n_ctx: int = 0,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    flash_attn: str = "auto",
    type_k: str = "f16",
    type_v: str = "f16",
    exact: bool = False,
    n_threads: int | None = None,
    n_threads_batch: int | None = None,
    draft_n_threads: int | None = None,
    cpu_range: str | None = None,
    draft_cpu_range: str | None = None,
    n_gpu_layers: int | str = "auto",
    draft_n_gpu_layers: int | str = "auto",
    devices: Sequence[str] | None = None,
    draft_devices: Sequence[str] | None = None,
    split_mode: str = "layer",
    draft_split_mode: str = "layer",
    tensor_split: Sequence[float] = (),
    draft_tensor_split: Sequence[float] = (),
    main_gpu: int = 0,
    draft_main_gpu: int = 0,
    rpc_servers: Sequence[str] = (),
    draft_rpc_servers: Sequence[str] = (),
    rpc_timeout_s: float = 8.0,
    use_mmap: bool = True,
    use_mlock: bool = False,
    offline: bool = False,
    draft_n_max: int | None = None,
    draft_n_ahead: int | None = None,
    schedule: str = "auto",
    profile: bool = True,
    n_predict: int = -1,
    back_port: int | None = None,
    back_host: str = "127.0.0.1",
    back_token: str = "",
    remote_drafts: RemoteDrafts | None = None,
    progress: Progress = lambda *_: None,
) -> Engine:
    """Load a target and, with `draft`, a draft, which writes nothing but makes the target faster.

    Both are paths, or `hf://user/repo:Q4_K_M`, or what llama.cpp's -hf takes; the target "demo" is a small pair that
    duo fetches and makes. The names are those of llama-cpp-python, with `draft_` in front for the draft's. What is
    left out is chosen for these models on this machine, and learned while it runs (`profile`).

    n_ctx: tokens of the context; 0: what each text needs.
    exact: bit-equal logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0).
    n_gpu_layers: a number, "all", or "auto" for as many as fit the devices' memory.
    devices: names of devices to use instead of all GPUs; none at all for an empty one.
    rpc_servers: host:port of machines whose devices are used (llama.cpp's RPC).
    draft_n_max: most candidates verified at once; 0: no drafting. draft_n_ahead: most tokens ahead of the target.
    schedule: "async" for both models at the same time, "sync" for taking turns, "off", or "auto" for the fastest.
    n_predict: tokens that texts will have, as far as that is known; devices keep room for their cache.
    back_port: where drafts on other machines (duo back) may join; back_token: what they must know.
    remote_drafts: those of a lead that listens already.
    progress: called on a thread of its own with what is done, how far, and of how much; False stops.

    Raises ModelError, VocabularyError, MemoryLimitError, DownloadError, DeviceError or UsageError.
    """
    config = EngineConfig(
        n_ctx, n_batch, n_ubatch, flash_attn, type_k, type_v, exact, n_threads, n_threads_batch, draft_n_threads,
        cpu_range, draft_cpu_range, draft_n_max, draft_n_ahead, schedule, n_predict,
    )  # fmt: skip
    config.drafting()
    for name, value, choices in (
        ("type_k", type_k, tuple(CACHE_TYPES)),
        ("type_v", type_v, tuple(CACHE_TYPES)),
        ("draft_split_mode", draft_split_mode, SPLIT_MODES),
    ):
        if value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}", name)
    for name, layers in (("n_gpu_layers", n_gpu_layers), ("draft_n_gpu_layers", draft_n_gpu_layers)):
        if isinstance(layers, str) and layers not in ("auto", "all"):
            raise UsageError(f"{name} must be a number, 'all' or 'auto', not {layers!r}", name)
    model = partial(ModelConfig, Path(), use_mmap=use_mmap, use_mlock=use_mlock, rpc_timeout_s=rpc_timeout_s)
    # The GPUs are left to a draft that stays here when the target has devices of its own.
    keeps_gpus = not (rpc_servers and draft is not None and not draft_rpc_servers)
    placed = model(
        *_layers(n_gpu_layers), rpc_servers=tuple(rpc_servers), uses_gpus=keeps_gpus, devices=_names(devices),
        split_mode=split_mode, tensor_split=tuple(tensor_split), main_gpu=main_gpu,
    )  # fmt: skip
    draft_placed = model(
        *_layers(draft_n_gpu_layers), rpc_servers=tuple(draft_rpc_servers), uses_gpus=not draft_rpc_servers,
        devices=_names(draft_devices), split_mode=draft_split_mode, tensor_split=tuple(draft_tensor_split),
        main_gpu=draft_main_gpu,
    )  # fmt: skip
    listen = _Listening(back_host, back_port, back_token) if back_port is not None else None
    names = (target, None if draft_n_max == 0 else draft)
    loader = _Loader(names, (placed, draft_placed), config, listen or remote_drafts, offline, profile, progress)
    # On a thread of its own, so that the calling one hears Ctrl-C.
    loading: Background[Engine] = Background(loader.run, "duo-load")
    with loading:
        (engine,) = loading
    return engine


def _layers(layers: int | str) -> tuple[int, bool]:
    """The number of layers, and whether as many as fit are meant instead."""
    return ALL_LAYERS if isinstance(layers, str) else layers, layers == "auto"


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


@dataclass(frozen=True, slots=True)
class _Listening:
    """Where remote drafts may join."""

    host: str
    port: int
    token: str

    def listener(self, drafts: RemoteDrafts) -> Listener:
        """Listen. Raises UsageError."""
        if not self.token and not is_loopback(self.host):
            raise UsageError(
                f"back_host {self.host}: other machines can reach this address, so remote drafts must know a token",
                "back_host",
            )
        app = draft_app(drafts, Admission(self.token), Rules(hosts=allowed_hosts(self.host)))
        return Listener(app, self.host, self.port)


@dataclass(slots=True)
class _Loader:
    """Assembles one engine."""

    names: tuple[ModelName, ModelName | None]
    placed: tuple[ModelConfig, ModelConfig]  # whose paths are not known yet
    config: EngineConfig
    remote: _Listening | RemoteDrafts | None
    offline: bool
    wants_profile: bool
    progress: Progress
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, put: Callable[[Engine], None], stop: threading.Event) -> None:
        """Work for Background."""
        self._stop = stop
        with ExitStack() as stack:
            engine = self._load(stack)
            stack.pop_all()
            put(engine)

    def _load(self, stack: ExitStack) -> Engine:
        drafts = self._remote_drafts(stack)
        target_config, draft_config = self._models()
        configs = [target_config] + ([draft_config] if draft_config and not draft_config.rpc_servers else [])
        _check_weights(configs)
        models = [self._model(config, stack) for config in configs]
        target, draft = models[0], models[1] if len(models) > 1 else None
        if draft is not None:
            _check_vocabulary(target, draft)
        profile = self._profile(target_config, draft_config)
        if draft_config is not None and draft is None:
            drafts = drafts or RemoteDrafts()
            drafts.process = stack.enter_context(self._process(draft_config, target, drafts))
            drafts.learned[draft_config.path.stem] = profile.load().get("policy", {}) if profile is not None else {}
        slot = Slot(target, draft, self.config, drafts, profile)
        if drafts is not None:
            drafts.limit(slot.drafting, slot.threads.target)
        if profile is not None:
            stack.callback(_keep, profile, slot, draft_config, drafts)
        return Engine(slot, stack.pop_all())

    def _remote_drafts(self, stack: ExitStack) -> RemoteDrafts | None:
        """Where drafts on other machines join, if they may; those that come before there is a target come again."""
        if not isinstance(self.remote, _Listening):
            return self.remote
        drafts = RemoteDrafts()
        listener = stack.enter_context(self.remote.listener(drafts))
        log.info("taking drafts at ws://%s:%d", in_url(self.remote.host), listener.port)
        return drafts

    def _models(self) -> tuple[ModelConfig, ModelConfig | None]:
        """The files, and where their layers go."""
        name, draft_name = self.names
        if name == DEMO:
            if draft_name is not None:
                raise UsageError("the demo pair has a draft of its own: name the target of this one")
            path, draft_path = demo_pair(self._show, offline=self.offline)
            paths: tuple[Path, Path | None] = path, None if self.config.draft_n_max == 0 else draft_path
        else:
            for local in (name, draft_name):
                if isinstance(local, os.PathLike):
                    check_gguf(Path(local))  # before anything is fetched
            found = find_model(name, offline=self.offline)
            paths = found, find_model(draft_name, offline=self.offline) if draft_name is not None else None
        target, draft = self.placed
        configs = [replace(target, path=paths[0])] + ([replace(draft, path=paths[1])] if paths[1] is not None else [])
        for config in configs:
            for part in config.shards:
                check_gguf(part)
        return fit(configs[0], configs[1] if len(configs) > 1 else None, expected_context(self.config))

    def _show(self, description: str, done: float, total: float | None) -> None:
        """Tell how far it is. Raises ModelError if it is to stop."""
        if self.progress(description, done, total) is False or self._stop.is_set():
            raise ModelError(f"{description}: stopped")

    def _model(self, config: ModelConfig, stack: ExitStack) -> Model:
        raised: list[BaseException] = []

        def on_progress(share: float) -> bool:
            try:
                self._show(f"loading {config.path.name}", share, 1.0)
            except BaseException as error:  # raised below: llama.cpp is in between
                raised.append(error)
            return not raised

        try:
            return stack.enter_context(closing(Model(config, on_progress)))
        except ModelError as error:
            raise (raised or [error])[0] from None

    def _process(self, draft: ModelConfig, target: Model, drafts: RemoteDrafts) -> DraftProcess:
        """The draft on RPC servers, in a process of its own: a dying server ends that."""
        here = replace(draft, n_gpu_layers=0, rpc_servers=(), devices=())
        with closing(Model(here, vocabulary_only=True)) as model:
            _check_vocabulary(target, model)
        n_threads = self.config.draft_n_threads or 1
        context = replace(
            self.config.context(2 * self.config.drafting().n_max, n_threads, n_threads, 0),
            exact=False,
            type_k="f16",
            type_v="f16",
            n_ubatch=DRAFT_BATCH,
        )
        return DraftProcess(f"the draft on {', '.join(draft.rpc_servers)}", draft, context, drafts)

    def _profile(self, target: ModelConfig, draft: ModelConfig | None) -> Profile | None:
        """The profile, if there is a draft, one is wanted and there is a place for it."""
        if draft is None or not self.wants_profile:
            return None
        try:
            return find_profile(self.config, (target, draft))
        except UsageError as error:
            log.warning("%s: what is learned is not kept", error)
            return None


def find_profile(config: EngineConfig, models: Sequence[ModelConfig]) -> Profile:
    """The profile for these models, on this machine, with all that changes what a decode costs.

    Raises UsageError if there is no config directory.
    """
    return Profile(
        {
            "models": [
                {
                    "path": str(model.path.resolve()),
                    "bytes": sum(part.stat().st_size for part in model.shards),
                    "gpu_layers": model.n_gpu_layers,
                    "devices": list(model.devices) if model.devices is not None else None,
                    "servers": list(model.rpc_servers),
                    "split": [model.split_mode, list(model.tensor_split), model.main_gpu],
                }
                for model in models
            ],
            "devices": [device.description for device in list_devices()],
            "cores": usable_cores(),
            "llama": library.versions()["llama-cpp-python"],
            "options": [
                config.n_threads,
                config.draft_n_threads,
                config.cpu_range,
                config.draft_cpu_range,
                config.flash_attn,
                config.type_k,
                config.type_v,
                config.exact,
            ],
        }
    )


def _keep(profile: Profile, slot: Slot, draft: ModelConfig | None, drafts: RemoteDrafts | None) -> None:
    """Save what was learned of the draft, or warn that it could not be."""
    learned = slot.policy.state() if slot.policy.rate else {}
    if drafts is not None and draft is not None and draft.rpc_servers:
        learned = drafts.learned.get(draft.path.stem, {})
    if not learned:
        return
    try:
        profile.save(profile.load() | {"policy": learned})
    except OSError as error:
        log.warning(
            "what was learned could not be kept in %s: %s (profile=False leaves it out)", profile.path, error.strerror
        )


def _check_vocabulary(target: Model, draft: Model) -> None:
    if difference := vocabulary_difference(target, draft):
        raise VocabularyError(f"{draft.path.name} cannot draft for {target.path.name}: {difference}")


def _check_weights(configs: Sequence[ModelConfig]) -> None:
    """Warn of weights that do not fit the memory, because they may be read again and again."""
    on_host = [config for config in configs if not devices_for(config)]
    sizes = [part.stat().st_size for config in on_host for part in config.shards]
    available = available_bytes()
    if available is not None and sum(sizes) > available:
        log.warning(
            "the weights (%.1f GiB) are larger than the available memory (%.1f GiB): "
            "they may be read from disk again for every token",
            sum(sizes) / 2**30,
            available / 2**30,
        )
