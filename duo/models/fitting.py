"""Fits layers to the memory of the devices, where their number is not given."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from duo.config import ALL_LAYERS, ContextConfig, EngineConfig, ModelConfig
from duo.errors import MemoryLimitError
from duo.llama.devices import RPC, devices_for
from duo.llama.limits import of_size, uses_host_memory
from duo.llama.model import model_size
from duo.models.placement import Footprint, Layout, Room, fill, place

log = logging.getLogger("duo.models")

DEVICE_CTX = 8192  # tokens: the cache of a text of unknown length leaves some device memory for layers
_PROMPT = 4096  # tokens assumed for a prompt that is not known yet


def expected_context(config: EngineConfig) -> ContextConfig:
    """An estimate of the context, before the first text is requested."""
    n_ctx = config.n_ctx or (DEVICE_CTX if config.n_predict < 0 else config.n_predict + _PROMPT)
    return replace(config.context(n_ctx, 1, 1, 0), exact=False)


def fit(
    target: ModelConfig, draft: ModelConfig | None, context: ContextConfig, *, name: str = "target"
) -> tuple[ModelConfig, ModelConfig | None]:
    """The models with their numbers of layers, chosen and logged where `fits_layers` is set.

    `context` is an estimate; `name` is that of the first model in the log. A draft on RPC servers is fitted by its own
    process. Raises ModelError, UsageError or DeviceError.
    """
    models = [_Placed(name, target, context)]
    if draft is not None and not draft.rpc_servers:
        models.append(_Placed("draft", draft, context))
    for device in dict.fromkeys(device for model in models for device in model.silent):
        why = "reports all of its %s as free, whatever other programs use there: if the layers do not fit, set"
        log.info(f"%s (%s) {why} %s", device.name, device.description, of_size(device.reported[1]), models[0].parameter)
    _check_weights(models)
    if not any(model.rooms and model.n_layers is None for model in models):
        return target, draft
    first, last = models[0], models[-1]
    layouts: Sequence[Layout] = [fill(first.footprint, first.rooms, first.n_layers)]
    if last is not first:
        layouts = place(first.footprint, last.footprint, first.rooms, last.rooms, first.n_layers, last.n_layers)
    placed = list(zip(models, layouts, strict=True))
    log.info(
        "layers on devices (%s): %s",
        ", ".join(model.parameter for model in models if model.rooms),
        ", ".join(model.summary(layout) for model, layout in placed if model.rooms),
    )
    target, *drafts = (model.placed(layout) for model, layout in placed)
    return target, drafts[0] if drafts else draft


def _check_weights(models: Sequence["_Placed"]) -> None:
    """Raise MemoryLimitError if required layers do not fit: some drivers would use the host's memory, slowly."""
    required = [model for model in models if model.required_bytes]
    rooms = {room.name: room.free_bytes for model in required for room in model.rooms}
    needed, free = sum(model.required_bytes for model in required), sum(rooms.values())
    if free and needed > free and not uses_host_memory():  # 0: not reported
        raise MemoryLimitError(
            f"{' and '.join(model.parameter for model in required)}: the layers need {needed / 2**30:.1f} GiB on "
            f"{', '.join(rooms)}, and {free / 2**30:.1f} GiB are free: give fewer (auto: as many as fit)"
        )


class _Placed:
    """One of the models, in terms of duo.models.placement."""

    def __init__(self, name: str, config: ModelConfig, context: ContextConfig) -> None:
        self._name, self._config, self._context = name, config, context
        self.parameter = f"{config.prefix}n_gpu_layers"
        self.n_layers = None if config.fits_layers else config.n_gpu_layers
        if config.split_mode not in ("none", "layer"):  # each layer is split
            self.n_layers = ALL_LAYERS
        devices = devices_for(config)
        self.rooms = [Room(device.name, device.memory[0]) for device in devices]
        self.silent = [one for one in devices if one.kind == RPC and one.reported[0] == one.reported[1] > 0]

    @cached_property
    def footprint(self) -> Footprint:
        size = model_size(self._config)
        buffers = size.compute_bytes(self._context, len(self.rooms)), size.staging_bytes(self._context)
        return Footprint(size.layers, size.output, size.cache_bytes(self._context), *buffers)

    @property
    def required_bytes(self) -> int:
        """Weights of the layers that have to be on devices."""
        return sum(self.footprint.weights[-max(0, self.n_layers) :]) if self.rooms and self.n_layers else 0

    def summary(self, layout: Layout) -> str:
        names = [room.name for room, n in zip(self.rooms, layout.tensor_split, strict=True) if n]
        n_all = len(self.footprint.weights)
        return f"{self._name} {layout.n_gpu_layers} of {n_all}" + (f" on {', '.join(names)}" if names else "")

    def placed(self, layout: Layout) -> ModelConfig:
        split = self._config.tensor_split
        if not split and len(self.rooms) > 1 and layout.n_gpu_layers and self._config.split_mode == "layer":
            split = tuple(map(float, layout.tensor_split))
        return replace(self._config, n_gpu_layers=layout.n_gpu_layers, tensor_split=split)
