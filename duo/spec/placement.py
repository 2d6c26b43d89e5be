"""Placement: how many layers of target and draft go to which device.

llama.cpp puts the last layers of a model on devices: of n_gpu_layers = n the first one is the output layer, the rest
are the last n - 1 layers, in their order over the devices, in proportion to `tensor_split`. What is left stays on the
host, and so does the token embedding, of which a token reads one row.

A model takes devices from the last to the first, as many layers on each as its memory takes: fewer devices are fewer
steps from one to the next. One of the models goes first, the other takes what is left:

    the draft first, over all its devices or on one of them alone, then the target
    the same, the target only on devices without the draft
    the target first, then the draft

Where both fit whole, both go whole in all of these. The rates that the ways of it would reach are forecast, the highest
wins, and of equal ones the first. For the forecast it is assumed that

-   a token reads all weights once (a mixture of experts reads fewer, so that its gain by a draft is overrated), at the
    bandwidth of the device that they are on or of the host; caches are far from full, and cost nothing;
-   a device is bound by its memory, so that a batch costs what one token does; on the host each further token adds a
    seventh (two cores, measured);
-   a candidate is accepted with the same probability if all before it are;
-   where both models are on one device, or both partly on the host, the target goes first there and the draft has the
    rest of the time. A target that is nowhere else leaves none: then they take turns. On different devices they
    overlap.

Only the proportions of the bandwidths matter, since rates are compared and not promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from duo.spec.forecast import overlapped, taking_turns

# Memory that is left free on each device, as llama.cpp's own fitting does (common.h, fit_params_target): the driver
# takes some for itself, buffers are estimated, and while a prompt is read tensors of the host are copied in.
MARGIN = 1 << 30

_HOST = ""  # no device has this name
_HOST_GROWTH = 1 / 7


@dataclass(frozen=True, slots=True)
class Room:
    """A device that layers can go to. The two models may have rooms of the same name: these are one device."""

    name: str
    free_bytes: int
    bytes_per_s: float = 400e9  # how fast it reads its memory


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes on devices, in bytes."""

    layers: tuple[int, ...]  # weights of each layer, first to last
    output: int  # weights of the output layer
    cache: tuple[int, ...]  # KV cache of each layer
    overhead: int  # buffers to compute with, on each device that has a layer

    @property
    def weights(self) -> tuple[int, ...]:
        """Weights of all layers, the output layer being the last."""
        return (*self.layers, self.output)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Weights and cache of all layers, the output layer being the last."""
        return (*(map(sum, zip(self.layers, self.cache, strict=True))), self.output)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the layers of one model go."""

    n_gpu_layers: int  # as llama.cpp counts them, 0 to n_layer + 1
    tensor_split: tuple[int, ...]  # how many of them each room has, in the order of the rooms
    used: tuple[int, ...]  # bytes taken in each room, its overhead included


@dataclass(frozen=True, slots=True)
class Placement:
    """Where both models go."""

    target: Layout
    draft: Layout


@dataclass(frozen=True, slots=True)
class Figures:
    """What the forecast is made from."""

    acceptance: float = 0.7  # the policy's guess for a small draft of the same family
    n_max: int = 8  # most candidates in one target batch
    n_ahead: int = 16  # most tokens that the draft is ahead
    host_bytes_per_s: float = 40e9  # two channels of DDR4 or DDR5


def fill(model: Footprint, rooms: Sequence[Room], n_layers: int | None = None, margin: int = MARGIN) -> Layout:
    """Place one model: as many layers as fit, or `n_layers` (negative: all) whether they fit or not."""
    return _fill(model, rooms, _free(rooms, margin), n_layers)


def place(
    target: Footprint,
    draft: Footprint,
    target_rooms: Sequence[Room],
    draft_rooms: Sequence[Room],
    target_layers: int | None = None,
    draft_layers: int | None = None,
    figures: Figures | None = None,
    margin: int = MARGIN,
) -> Placement:
    """Place both models where they are forecast to be fastest; see the module for how.

    `target_layers` and `draft_layers` are numbers of n_gpu_layers that are asked for (negative: all), None for as many
    as fit. What is asked for is kept even where it does not fit, and is then spread in proportion to free memory.
    """
    figures = figures or Figures()
    free = _free([*target_rooms, *draft_rooms], margin)
    ways = []
    for names in _choices(draft_rooms):
        first = _fill(draft, draft_rooms, {name: free[name] for name in names}, draft_layers)
        left = _less(free, draft_rooms, first)
        apart = {name: size for name, size in left.items() if size == free[name]}
        ways += [Placement(_fill(target, target_rooms, room, target_layers), first) for room in (left, apart)]
    first = _fill(target, target_rooms, free, target_layers)
    ways.append(Placement(first, _fill(draft, draft_rooms, _less(free, target_rooms, first), draft_layers)))

    def merit(way: Placement) -> tuple[int, float]:
        left = _less(_less(free, target_rooms, way.target), draft_rooms, way.draft)
        target_s = _seconds(target, target_rooms, way.target, figures)
        draft_s = _seconds(draft, draft_rooms, way.draft, figures)
        return sum(min(size, 0) for size in left.values()), _rate(target_s, draft_s, figures)

    return max(ways, key=merit)


def _choices(rooms: Sequence[Room]) -> list[list[str]]:
    """The names of all rooms, then of each alone."""
    names = [room.name for room in rooms]
    return [names, *([name] for name in names)] if len(names) > 1 else [names]


def _free(rooms: Sequence[Room], margin: int) -> dict[str, int]:
    """Bytes that may be used in each room."""
    return {room.name: max(0, room.free_bytes - margin) for room in rooms}


def _less(free: Mapping[str, int], rooms: Sequence[Room], layout: Layout) -> dict[str, int]:
    """What is left of `free`; less than nothing where a layout does not fit."""
    used = {room.name: size for room, size in zip(rooms, layout.used, strict=True)}
    return {name: size - used.get(name, 0) for name, size in free.items()}


def _fill(model: Footprint, rooms: Sequence[Room], free: Mapping[str, int], n_layers: int | None) -> Layout:
    """Place one model into what is `free`; a room that is not named there has nothing."""
    sizes = model.sizes
    most = len(sizes) if n_layers is None or n_layers < 0 else min(n_layers, len(sizes))
    room_sizes = [max(0, free.get(room.name, 0)) for room in rooms]
    counts: list[int] = []
    n = 0
    for size in reversed(room_sizes):
        at = len(sizes) - n
        taken = list(accumulate(reversed(sizes[len(sizes) - most : at]), initial=model.overhead))
        counts.insert(0, sum(total <= size for total in taken[1:]))
        n += counts[0]
    if n_layers is not None and n < most and rooms:
        counts, n = _in_proportion(most, room_sizes), most
    ends = list(accumulate(counts, initial=len(sizes) - n))
    used = [sum(sizes[a:b]) + (model.overhead if b > a else 0) for a, b in pairwise(ends)]
    return Layout(n, tuple(counts), tuple(used))


def _in_proportion(n: int, parts: Sequence[int]) -> list[int]:
    """`n` divided in proportion to `parts`; evenly if all are 0."""
    parts = parts if any(parts) else [1] * len(parts)
    ends = [round(n * end / sum(parts)) for end in accumulate(parts, initial=0)]
    return [b - a for a, b in pairwise(ends)]


def _seconds(model: Footprint, rooms: Sequence[Room], layout: Layout, figures: Figures) -> dict[str, float]:
    """What one token costs in each room and on the host."""
    weights = model.weights
    ends = list(accumulate(layout.tensor_split, initial=len(weights) - layout.n_gpu_layers))
    seconds = {_HOST: sum(weights[: ends[0]]) / figures.host_bytes_per_s}
    for room, (a, b) in zip(rooms, pairwise(ends), strict=True):
        seconds[room.name] = sum(weights[a:b]) / room.bytes_per_s
    return seconds


def _rate(target_s: Mapping[str, float], draft_s: Mapping[str, float], figures: Figures) -> float:
    """The forecast rate of a pair, from what one token costs where; tokens per second."""
    one = sum(target_s.values())
    if not (one and any(draft_s.values())):
        return 0.0  # a file without weights: whoever loads it will say so
    batches = [one + target_s[_HOST] * _HOST_GROWTH * k for k in range(figures.n_max + 1)]
    turns = taking_turns(batches, sum(draft_s.values()), figures.acceptance).rate
    busy = {name: seconds / one for name, seconds in target_s.items()}
    if any(seconds and busy.get(name, 0) >= 1 for name, seconds in draft_s.items()):
        return turns
    beside_s = sum(seconds / (1 - busy.get(name, 0)) for name, seconds in draft_s.items() if seconds)
    return max(turns, overlapped(batches, beside_s, figures.acceptance, figures.n_ahead).rate)
