"""Fits layers to the memory of the devices, where their number is not given."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from duo.config import ALL_LAYERS, ContextConfig, EngineConfig, ModelConfig
from duo.errors import MemoryLimitError
from duo.llama.capacity import largest_cache, uses_host_memory
from duo.llama.devices import Device, devices_for, layer_devices
from duo.llama.model_size import ModelSize, model_size
from duo.spec.placement import Footprint, Layout, Room, fill, place

log = logging.getLogger("duo.models")

DEVICE_CTX = 8192  # tokens: the cache of a text of unknown length leaves some device memory for layers
_PROMPT = 4096  # tokens assumed for a prompt that is not known yet
_BY_LAYER = ("none", "layer")  # split modes that do not split a layer


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
    models = [_Placed(name, "n_gpu_layers", target, context)]
    if draft is not None and not draft.rpc_servers:
        models.append(_Placed("draft", "draft_n_gpu_layers", draft, context))
    _check_weights(models)
    if any(model.rooms and model.n_layers is None for model in models):
        layouts = _layouts(models)
        chosen = [
            (model.parameter, model.summary(layout))
            for model, layout in zip(models, layouts, strict=True)
            if model.rooms
        ]
        log.info("layers on devices (%s): %s", *(", ".join(words) for words in zip(*chosen, strict=True)))
        placed = [model.placed(layout) for model, layout in zip(models, layouts, strict=True)]
        return placed[0], placed[1] if len(placed) > 1 else draft
    return target, draft


def _check_weights(models: Sequence[_Placed]) -> None:
    """Raise MemoryLimitError if required layers are larger than the free memory of their devices.

    Some drivers would use the host's memory instead, at a fraction of the speed.
    """
    rooms: dict[str, int] = {}
    needed, names = 0, list[str]()
    for model in models:
        if not model.required_bytes:
            continue
        rooms |= {room.name: room.free_bytes for room in model.rooms}
        needed += model.required_bytes
        names.append(model.parameter)
        free = sum(rooms.values())
        if free and needed > free and not uses_host_memory():  # 0: not reported
            n_fitting = model.n_fitting((free - needed + model.required_bytes) / free)
            raise MemoryLimitError(
                f"{' and '.join(names)}: the layers need {needed / 2**30:.1f} GiB on {', '.join(rooms)}, and "
                f"{free / 2**30:.1f} GiB are free: {n_fitting} of the {len(model.footprint.weights)} layers of "
                f"{model.path.name} fit (auto: as many as fit)"
            )


def _layouts(models: list[_Placed]) -> list[Layout]:
    first, *others = models
    if not others:
        return [fill(first.footprint, first.rooms, first.n_layers)]
    second = others[0]
    return [*place(first.footprint, second.footprint, first.rooms, second.rooms, first.n_layers, second.n_layers)]


class _Placed:
    """One of the models, in terms of duo.spec.placement. `parameter` is that of its number of layers."""

    def __init__(self, name: str, parameter: str, config: ModelConfig, context: ContextConfig) -> None:
        self._name = name
        self.parameter = parameter
        self._config = config
        self.n_layers = None if config.fits_layers else config.n_gpu_layers
        devices = layer_devices(config, devices_for(config))
        if config.split_mode not in _BY_LAYER:
            self.n_layers = ALL_LAYERS
        self._context = context
        self.path = config.path
        self.rooms = [Room(device.name, self._usable_bytes(device)) for device in devices]

    def _usable_bytes(self, device: Device) -> int:
        """Free memory; none if the cache of a layer is too large for a buffer and the layers are to be chosen."""
        if (
            self.n_layers is None
            and largest_cache(device, self._size.cache_widths, self._context) < self._context.n_ctx
        ):
            return 0
        return device.memory[0]

    @cached_property
    def _size(self) -> ModelSize:
        return model_size(self._config)

    @property
    def required_bytes(self) -> int:
        """Weights of the layers that have to be on devices."""
        if not self.rooms or not self.n_layers:
            return 0
        weights = self.footprint.weights
        return sum(weights if self.n_layers < 0 else weights[-self.n_layers :])

    def n_fitting(self, share: float) -> int:
        """How many layers fit this share of the free memory."""
        rooms = [replace(room, free_bytes=int(share * room.free_bytes)) for room in self.rooms]
        return fill(self.footprint, rooms).n_gpu_layers

    @cached_property
    def footprint(self) -> Footprint:
        size = self._size
        buffers = size.compute_bytes(self._context, len(self.rooms)), size.staging_bytes(self._context)
        return Footprint(size.layers, size.output, size.cache_bytes(self._context), *buffers)

    def summary(self, layout: Layout) -> str:
        names = [room.name for room, n in zip(self.rooms, layout.tensor_split, strict=True) if n]
        n_all = len(self.footprint.weights)
        return f"{self._name} {layout.n_gpu_layers} of {n_all}" + (f" on {', '.join(names)}" if names else "")

    def placed(self, layout: Layout) -> ModelConfig:
        split = self._config.tensor_split
        if not split and len(self.rooms) > 1 and layout.n_gpu_layers and self._config.split_mode == "layer":
            split = tuple(map(float, layout.tensor_split))
        return replace(self._config, n_gpu_layers=layout.n_gpu_layers, tensor_split=split)
