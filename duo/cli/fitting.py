"""-ngl auto: as many layers on the devices as their memory takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from duo.cli.device_options import Layers
from duo.cli.options import RunOptions
from duo.cli.output import say
from duo.config import ALL_LAYERS, ContextConfig, ModelConfig
from duo.engine.pair import DEVICE_CTX
from duo.llama.gguf_file import model_size
from duo.llama.offload import devices_for
from duo.spec.placement import Footprint, Layout, Room, fill, place

_PROMPT = 4096  # tokens that a prompt is taken to have, as long as it is not read
# Layers of these go to one device after the other; the others split each layer.
_BY_LAYER = ("none", "layer")


def fit(
    options: RunOptions, target: ModelConfig, draft: ModelConfig | None, *, name: str = "target"
) -> tuple[ModelConfig, ModelConfig | None]:
    """The same models, with numbers of layers where `auto` is asked for. What was chosen is said.

    `name` is what the first one is called. A draft on RPC servers is fitted by its own process. Raises ModelError,
    UsageError or DeviceError.
    """
    models = [_Model(name, "-ngl", options, target, options.gpu_layers)]
    if draft is not None and not draft.rpc_servers:
        models.append(_Model("draft", "-ngld", options, draft, options.gpu_layers_draft))
    if not any(model.rooms and model.n_layers is None for model in models):
        return target, draft
    first = models[0]
    if len(models) == 1:
        layouts = [fill(first.footprint, first.rooms, first.n_layers)]
    else:
        second = models[1]
        found = place(first.footprint, second.footprint, first.rooms, second.rooms, first.n_layers, second.n_layers)
        layouts = [found.target, found.draft]
    said = [(model.option, model.words(layout)) for model, layout in zip(models, layouts, strict=True) if model.rooms]
    say(f"duo: layers on devices ({', '.join(option for option, _ in said)}): {', '.join(words for _, words in said)}")
    placed = [model.placed(layout) for model, layout in zip(models, layouts, strict=True)]
    return placed[0], placed[1] if len(placed) > 1 else draft


class _Model:
    """One of the two, in terms of duo.spec.placement."""

    def __init__(self, name: str, option: str, options: RunOptions, config: ModelConfig, layers: Layers) -> None:
        self._name = name
        self.option = option
        self._config = config
        self.n_layers = int(layers) if layers.named else None
        devices = devices_for(config)
        if config.split_mode == "none":
            devices = devices[config.main_gpu : config.main_gpu + 1]
        if config.split_mode not in _BY_LAYER:
            self.n_layers = ALL_LAYERS
        self.rooms = [Room(device.name, device.memory[0]) for device in devices]
        self._context = _context(options)

    @cached_property
    def footprint(self) -> Footprint:
        size = model_size(self._config)
        return Footprint(size.layers, size.output, size.cache_bytes(self._context), size.compute_bytes(self._context))

    def words(self, layout: Layout) -> str:
        names = [room.name for room, n in zip(self.rooms, layout.tensor_split, strict=True) if n]
        n_all = len(self.footprint.weights)
        return f"{self._name} {layout.n_gpu_layers} of {n_all}" + (f" on {', '.join(names)}" if names else "")

    def placed(self, layout: Layout) -> ModelConfig:
        split = self._config.tensor_split
        if not split and len(self.rooms) > 1 and layout.n_gpu_layers and self._config.split_mode == "layer":
            split = tuple(map(float, layout.tensor_split))
        return replace(self._config, n_gpu_layers=layout.n_gpu_layers, tensor_split=split)


def _context(options: RunOptions) -> ContextConfig:
    """The context that there will be, as far as that can be told before the prompt is read."""
    n_ctx = options.ctx_size or (DEVICE_CTX if options.predict < 0 else options.predict + _PROMPT)
    return ContextConfig(
        n_ctx,
        1,
        1,
        options.batch_size,
        options.ubatch_size,
        flash_attn=options.flash_attn.value,
        type_k=options.cache_type_k.value,
        type_v=options.cache_type_v.value,
    )
