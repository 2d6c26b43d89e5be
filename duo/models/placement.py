"""Placement: how many layers of target and draft to offload to which device.

llama.cpp offloads the last layers of a model: with n_gpu_layers = n these are the output layer and the last n - 1
others, assigned to the devices in order and in proportion to `tensor_split`. The rest stays on the host, as does the
token embedding, of which each token reads only one row.

A model fills devices from the last to the first, because fewer devices mean fewer transfers. Either the draft is placed
first, across all its devices or on a single one, then the target, on all devices or on those without the draft; or the
target first, then the draft. The placement with the highest forecast rate is used; among equals, the first of these.
The forecast assumes that

-   each token reads all weights once, at the bandwidth of the device or host that holds them (for a mixture of experts
    this overestimates the gain from drafting); reading the KV cache costs nothing;
-   devices are limited by memory bandwidth, so a batch costs as much as one token; on the host each further token adds
    a seventh (measured on two cores);
-   where both models share a device, or both have layers on the host, the target has priority and the draft gets the
    remaining time. If the target is only there, none remains and they run sequentially.

Only the ratios of the bandwidths matter, because rates are compared, not reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from duo.speculation.forecast import overlapped, taking_turns

# Bytes to leave free on each device, as llama.cpp does (common.h, fit_params_target): for the driver and for errors.
MARGIN = 1 << 30
_ACCEPTANCE = 0.7  # typical for a small draft of the same family
_N_MAX, _N_AHEAD = 8, 16  # the most candidates in a batch, and tokens that the draft is ahead
_DEVICE_BYTES_PER_S, _HOST_BYTES_PER_S = 400e9, 40e9  # the host: two channels of DDR4 or DDR5
_HOST = ""  # key of the host among device names
_HOST_GROWTH = 1 / 7  # cost of each further token of a batch on the host, relative to one token


@dataclass(frozen=True, slots=True)
class Room:
    """A device for layers. Rooms of both models with the same name are the same device."""

    name: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that a model needs on devices, in bytes."""

    layers: tuple[int, ...]  # weights of each layer, first to last
    output: int  # weights of the output layer
    cache: tuple[int, ...]  # KV cache of each layer
    overhead: int  # compute buffers, on each device that has a layer
    staging: int = 0  # more of them unless all layers are on devices: a tensor of the host, copied in during prefill

    @property
    def weights(self) -> tuple[int, ...]:
        """Weights of all layers, the output layer last."""
        return (*self.layers, self.output)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Weights and KV cache of all layers, the output layer last."""
        return (*(map(sum, zip(self.layers, self.cache, strict=True))), self.output)


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of one model."""

    n_gpu_layers: int  # as llama.cpp counts them: 0 to n_layer + 1
    tensor_split: tuple[int, ...]  # number of layers in each room, in the order of the rooms
    used: tuple[int, ...]  # bytes used in each room, overhead included


def place(
    target: Footprint,
    draft: Footprint,
    target_rooms: Sequence[Room],
    draft_rooms: Sequence[Room],
    target_layers: int | None = None,
    draft_layers: int | None = None,
) -> tuple[Layout, Layout]:
    """Place both models: see above. `target_layers`, `draft_layers`: required n_gpu_layers, as for fill()."""
    free = _free([*target_rooms, *draft_rooms])
    ways = []
    for rooms in (draft_rooms, *([room] for room in draft_rooms)):
        first = fill(draft, draft_rooms, draft_layers, {room.name: free[room.name] for room in rooms})
        left = _less(free, draft_rooms, first)
        untouched = {name: size for name, size in left.items() if size == free[name]}
        ways += [(fill(target, target_rooms, target_layers, room), first) for room in (left, untouched)]
    first = fill(target, target_rooms, target_layers, free)
    ways.append((first, fill(draft, draft_rooms, draft_layers, _less(free, target_rooms, first))))

    def merit(way: tuple[Layout, Layout]) -> tuple[int, float]:
        left = _less(_less(free, target_rooms, way[0]), draft_rooms, way[1])
        rate = _rate(_seconds(target, target_rooms, way[0]), _seconds(draft, draft_rooms, way[1]))
        return sum(min(size, 0) for size in left.values()), rate

    return max(ways, key=merit)


def _free(rooms: Sequence[Room]) -> dict[str, int]:
    """Usable bytes in each room."""
    return {room.name: max(0, room.free_bytes - MARGIN) for room in rooms}


def _less(free: Mapping[str, int], rooms: Sequence[Room], layout: Layout) -> dict[str, int]:
    """`free` minus what `layout` uses; negative where it does not fit."""
    used = {room.name: size for room, size in zip(rooms, layout.used, strict=True)}
    return {name: size - used.get(name, 0) for name, size in free.items()}


def fill(
    model: Footprint, rooms: Sequence[Room], n_layers: int | None = None, free: Mapping[str, int] | None = None
) -> Layout:
    """Place one model: as many layers as fit, or exactly `n_layers` (negative: all), in proportion to the free memory.

    `free`: usable bytes in each room, 0 for rooms not named there; None: what the rooms have, less the margin.
    """
    sizes, free = model.sizes, _free(rooms) if free is None else free
    most = len(sizes) if n_layers is None or n_layers < 0 else min(n_layers, len(sizes))
    room_sizes = [max(0, free.get(room.name, 0)) for room in rooms]
    for overhead in (model.overhead, model.overhead + model.staging):
        counts = _counts(sizes[len(sizes) - most :], room_sizes, overhead)
        if sum(counts) == len(sizes):
            break
    if n_layers is not None and sum(counts) < most and rooms:
        # In proportion to the rooms; evenly if all are full.
        parts = room_sizes if any(room_sizes) else [1] * len(rooms)
        ends = [round(most * end / sum(parts)) for end in accumulate(parts, initial=0)]
        counts = [b - a for a, b in pairwise(ends)]
    overhead = model.overhead + (model.staging if sum(counts) < len(sizes) else 0)
    used = [size + (overhead if n else 0) for size, n in zip(_parts(sizes, counts), counts, strict=True)]
    return Layout(sum(counts), tuple(counts), tuple(used))


def _counts(sizes: Sequence[int], room_sizes: Sequence[int], overhead: int) -> list[int]:
    """How many of the last `sizes` fit into each room, filled from the last room to the first."""
    counts: list[int] = []
    for room_size in reversed(room_sizes):
        totals = accumulate(reversed(sizes[: len(sizes) - sum(counts)]), initial=overhead)
        counts.insert(0, sum(total <= room_size for total in list(totals)[1:]))
    return counts


def _parts(sizes: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The sum of the layers in each room."""
    ends = accumulate(counts, initial=len(sizes) - sum(counts))
    return [sum(sizes[a:b]) for a, b in pairwise(ends)]


def _seconds(model: Footprint, rooms: Sequence[Room], layout: Layout) -> dict[str, float]:
    """Seconds that one token takes in each room and on the host."""
    parts = _parts(model.weights, layout.tensor_split)
    seconds = {room.name: part / _DEVICE_BYTES_PER_S for room, part in zip(rooms, parts, strict=True)}
    return seconds | {_HOST: (sum(model.weights) - sum(parts)) / _HOST_BYTES_PER_S}


def _rate(target_s: Mapping[str, float], draft_s: Mapping[str, float]) -> float:
    """The forecast rate of a pair in tokens/s, from the seconds per token in each place."""
    one, token_s = sum(target_s.values()), sum(draft_s.values())
    if not (one and token_s):
        return 0.0  # a file without weights: loading it fails with a clear message
    batches = [one + target_s[_HOST] * _HOST_GROWTH * k for k in range(_N_MAX + 1)]
    turns = taking_turns(batches, token_s, [[(1.0, _ACCEPTANCE)]], token_s).rate
    slowed = [(seconds, 1 - target_s.get(name, 0) / one) for name, seconds in draft_s.items() if seconds]
    if any(share <= 0 for _, share in slowed):
        return turns
    concurrent_s = sum(seconds / share for seconds, share in slowed)
    return max(turns, overlapped(batches, [concurrent_s], _ACCEPTANCE, _N_AHEAD).rate)
