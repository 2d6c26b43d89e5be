"""Placement: how many layers of target and draft go to which device, where the user does not say.

llama.cpp offloads the last layers of a model: with n_gpu_layers = n these are the output layer and the last n - 1
others, assigned to the devices in order and in proportion to `tensor_split`. The rest stays on the host, as does the
token embedding, of which each token reads only one row.

A model fills devices from the last to the first, because fewer devices mean fewer transfers. Either the draft is placed
first, across all its devices or on a single one, then the target, on all devices or on those without the draft; or the
target first, then the draft. The placement with the highest forecast rate is used; among equals, the first of these.
The forecast assumes that

-   each token reads all weights once, at the bandwidth of the device or host that holds them; of the experts, its own;
    reading the KV cache costs nothing;
-   devices are limited by memory bandwidth, so a batch costs as much as one token; on the host each further token adds
    a seventh (measured on two cores); a further expert that a batch reads costs as much as the first, and the tokens of
    a batch choose their experts independently of each other;
-   where both models share a device, or both have layers on the host, the target has priority and the draft gets the
    remaining time. If the target is only there, none remains and they run sequentially.

Only the ratios of the bandwidths matter, because rates are compared, not reported.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple

from duo.config import ALL_LAYERS, ContextConfig, EngineConfig, ModelConfig
from duo.errors import MemoryLimitError
from duo.llama.build import CPU
from duo.llama.devices import RPC, devices_for
from duo.llama.limits import of_size, uses_host_memory
from duo.llama.model import Moved, model_size
from duo.speculation.forecast import overlapped, taking_turns

log = logging.getLogger("duo.models")

DEVICE_CTX = 8192  # tokens: the cache of a text of unknown length leaves some device memory for layers
_PROMPT = 4096  # tokens assumed for a prompt that is not known yet
# Bytes to leave free on each device, as llama.cpp does (common.h, fit_params_target): for the driver and for errors.
MARGIN = 1 << 30
_ACCEPTANCE = 0.7  # typical for a small draft of the same family
_N_MAX, _N_AHEAD = 8, 16  # the most candidates in a batch, and tokens that the draft is ahead
_DEVICE_BYTES_PER_S, _HOST_BYTES_PER_S = 400e9, 40e9  # the host: two channels of DDR4 or DDR5
Seconds = Mapping[str, float]  # by room, or CPU
_HOST_GROWTH = 1 / 7  # cost of each further token of a batch on the host, relative to one token


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
    elif draft is not None and draft.overrides:  # that process finds the devices
        model_size(draft, devices=None)
    for device in dict.fromkeys(device for model in models for device in model.silent):
        why = "reports all of its %s as free, whatever other programs use there: if the layers do not fit, set"
        log.info(f"%s (%s) {why} %s", device.name, device.description, of_size(device.reported[1]), models[0].parameter)
    _check_weights(models)
    if not any(model.rooms and model.n_layers is None for model in models):
        return target, draft
    footprints = [model.footprint for model in models]
    layouts = [fill(footprints[0])] if len(footprints) == 1 else place(*footprints)
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
    """One of the models, with its devices."""

    def __init__(self, name: str, config: ModelConfig, context: ContextConfig) -> None:
        self._name, self._config, self._context = name, config, context
        self.parameter = f"{config.prefix}n_gpu_layers"
        self.n_layers = None if config.fits_layers else config.n_gpu_layers
        if config.split_mode not in ("none", "layer"):  # each layer is split
            self.n_layers = ALL_LAYERS
        devices = self._devices = devices_for(config)
        self.rooms = [Room(device.name, device.memory[0]) for device in devices]
        if config.overrides:
            _ = self.footprint  # checks what is moved before a model is loaded
        self.silent = [one for one in devices if one.kind == RPC and one.reported[0] == one.reported[1] > 0]

    @cached_property
    def footprint(self) -> "Footprint":
        """What it needs. Reads the file."""
        size = model_size(self._config, devices=self._devices)
        compute, staging = size.compute_bytes(self._context, len(self.rooms)), size.staging_bytes(self._context)
        return Footprint(
            self.rooms, (*size.layers, size.output), (*size.cache_bytes(self._context), 0), compute, staging,
            self.n_layers, (*size.experts, 0), size.share, size.elsewhere,
        )  # fmt: skip

    @property
    def required_bytes(self) -> int:
        """Weights of the layers that have to be on devices, and of tensors that overrides place there."""
        named = sum(self.footprint.elsewhere.get(room.name, Moved()).n_bytes for room in self.rooms)
        return named + sum(self.footprint.weights[-max(0, self.n_layers) :]) if self.rooms and self.n_layers else 0

    def summary(self, layout: "Layout") -> str:
        names = [name for name, n in layout.counts.items() if n]
        n_all = len(self.footprint.weights)
        more, on_host = "", self.footprint.elsewhere.get(CPU, Moved()).n_bytes
        if on_host and names:
            more = f" ({of_size(on_host)} of them on the CPU)"
        elif self.n_layers is None and layout.n_gpu_layers < n_all and any(self.footprint.experts):
            more = f" (more fit with {self._config.prefix}cpu_moe: experts on the CPU)"
        return f"{self._name} {layout.n_gpu_layers} of {n_all}" + f" on {', '.join(names)}" * bool(names) + more

    def placed(self, layout: "Layout") -> ModelConfig:
        split = self._config.tensor_split
        if not split and len(self.rooms) > 1 and layout.n_gpu_layers and self._config.split_mode == "layer":
            split = tuple(map(float, layout.counts.values()))
        return replace(self._config, n_gpu_layers=layout.n_gpu_layers, tensor_split=split)


# Without files and devices


class Room(NamedTuple):
    """A device for layers. Rooms of both models with the same name are the same device."""

    name: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model to place: the rooms for it, and the memory that it needs there, in bytes."""

    rooms: Sequence[Room]
    weights: tuple[int, ...]  # of each layer, first to last, and of the output layer
    cache: tuple[int, ...]  # KV cache of the same
    overhead: int  # compute buffers, on each device that has a layer
    staging: int = 0  # more of them unless all layers are on devices: a tensor of the host, copied in during prefill
    n_layers: int | None = None  # that are required on devices; negative: all; None: as many as fit
    experts: Sequence[int] = ()  # of `weights`, those of experts; empty: there are none
    share: float = 1.0  # of the weights of experts: what a token reads
    # By room, or CPU: weights that are there wherever their layers are, not among `weights`.
    elsewhere: Mapping[str, Moved] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Weights and KV cache of all layers, the output layer last."""
        return list(map(sum, zip(self.weights, self.cache, strict=True)))


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of one model, by the names of its rooms, in their order."""

    counts: dict[str, int]  # layers
    used: dict[str, int]  # bytes, overhead included

    @property
    def n_gpu_layers(self) -> int:
        """Layers on devices, as llama.cpp counts them: 0 to n_layer + 1."""
        return sum(self.counts.values())


def place(target: Footprint, draft: Footprint) -> tuple[Layout, Layout]:
    """Place both models: see above."""
    free = _free([*target.rooms, *draft.rooms])
    ways = []
    for rooms in (draft.rooms, *([room] for room in draft.rooms)):
        first = fill(draft, {room.name: free[room.name] for room in rooms})
        left = _less(free, first)
        untouched = {name: size for name, size in left.items() if size == free[name]}
        ways += [(fill(target, room), first) for room in (left, untouched)]
    first = fill(target, free)
    ways.append((first, fill(draft, _less(free, first))))

    def merit(way: tuple[Layout, Layout]) -> tuple[int, float]:
        left = _less(_less(free, way[0]), way[1])
        seconds = _seconds(target, way[0]), _seconds(draft, way[1]), _seconds(target, way[0], experts_only=True)
        return sum(min(size, 0) for size in left.values()), _rate(*seconds, target.share)

    return max(ways, key=merit)


def _free(rooms: Iterable[Room]) -> dict[str, int]:
    """Usable bytes in each room."""
    return {room.name: max(0, room.free_bytes - MARGIN) for room in rooms}


def _less(free: Mapping[str, int], layout: Layout) -> dict[str, int]:
    """`free` minus what `layout` uses; negative where it does not fit."""
    return {name: size - layout.used.get(name, 0) for name, size in free.items()}


def fill(model: Footprint, free: Mapping[str, int] | None = None) -> Layout:
    """Place one model: as many layers as fit, or the required number, in proportion to the free memory.

    `free`: usable bytes in each room, 0 for rooms not named there; None: what the rooms have, less the margin.
    """
    sizes, names = model.sizes, [room.name for room in model.rooms]
    free = _free(model.rooms) if free is None else free
    n_layers, n_all = model.n_layers, len(sizes)
    most = n_all if n_layers is None or n_layers < 0 else min(n_layers, n_all)
    named = [model.elsewhere.get(name, Moved()).n_bytes for name in names]
    room_sizes = [max(0, free.get(name, 0) - size) for name, size in zip(names, named, strict=True)]
    for overhead in (model.overhead, model.overhead + model.staging)[CPU in model.elsewhere :]:
        counts = _counts(sizes[n_all - most :], room_sizes, overhead)
        if sum(counts) == n_all:
            break
    if n_layers is not None and sum(counts) < most and names:
        # In proportion to the rooms; evenly if all are full.
        parts = room_sizes if any(room_sizes) else [1] * len(names)
        ends = [round(most * end / sum(parts)) for end in accumulate(parts, initial=0)]
        counts = [b - a for a, b in pairwise(ends)]
    overhead = model.overhead + (model.staging if sum(counts) < n_all or CPU in model.elsewhere else 0)
    parts = [size + own for size, own in zip(_parts(sizes, counts), named, strict=True)]
    used = [size + (overhead if n or own else 0) for size, n, own in zip(parts, counts, named, strict=True)]
    return Layout(dict(zip(names, counts, strict=True)), dict(zip(names, used, strict=True)))


def _counts(sizes: Sequence[int], room_sizes: Sequence[int], overhead: int) -> list[int]:
    """How many of the last `sizes` fit into each room, filled from the last room to the first."""
    counts: list[int] = []
    for room_size in reversed(room_sizes):
        totals = accumulate(reversed(sizes[: len(sizes) - sum(counts)]), initial=overhead)
        counts.insert(0, sum(total <= room_size for total in list(totals)[1:]))
    return counts


def _parts(sizes: Sequence[int], counts: Iterable[int]) -> list[int]:
    """The sum of the layers in each room."""
    counts = list(counts)
    ends = accumulate(counts, initial=len(sizes) - sum(counts))
    return [sum(sizes[a:b]) for a, b in pairwise(ends)]


def _seconds(model: Footprint, layout: Layout, *, experts_only: bool = False) -> dict[str, float]:
    """Seconds that one token takes in each room and on the host, or those in which it reads experts."""

    def read(size: int, of_experts: int) -> int:
        return round(model.share * of_experts) + (0 if experts_only else size - of_experts)

    reads = list(map(read, model.weights, model.experts or repeat(0)))
    parts = _parts(reads, layout.counts.values())
    held = dict(zip(layout.counts, parts, strict=True)) | {CPU: sum(reads) - sum(parts)}
    for name, moved in model.elsewhere.items():
        held[name] = held.get(name, 0) + read(moved.n_bytes - moved.inputs, moved.experts)
    return {name: n / (_HOST_BYTES_PER_S if name == CPU else _DEVICE_BYTES_PER_S) for name, n in held.items()}


def _rate(target_s: Seconds, draft_s: Seconds, experts_s: Seconds, share: float) -> float:
    """The forecast rate of a pair in tokens/s, from the seconds per token in each place; `experts_s`: in the target."""
    one, token_s = sum(target_s.values()), sum(draft_s.values())
    if not (one and token_s):
        return 0.0  # a file without weights: loading it fails with a clear message
    batches = []
    for k in range(_N_MAX + 1):
        further = (1 - (1 - share) ** (k + 1)) / share - 1  # experts besides those of one token, relative to them
        growing_s = k * target_s[CPU] - further * experts_s[CPU]
        batches.append(one + _HOST_GROWTH * growing_s + further * sum(experts_s.values()))
    turns = taking_turns(batches, token_s, [[(1.0, _ACCEPTANCE)]], token_s).rate
    slowed = [(seconds, 1 - target_s.get(name, 0) / one) for name, seconds in draft_s.items() if seconds]
    if any(share <= 0 for _, share in slowed):
        return turns
    concurrent_s = sum(seconds / share for seconds, share in slowed)
    return max(turns, overlapped(batches, [concurrent_s], _ACCEPTANCE, _N_AHEAD).rate)
