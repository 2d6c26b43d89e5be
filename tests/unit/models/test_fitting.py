"""How many layers go to which device."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.llama.build import CPU
from duo.llama.model import Moved
from duo.models.fitting import MARGIN, Footprint, Room, fill, place

M = 1 << 20


def part(n_layer: int, layer: int, cache: int, output: int, overhead: int) -> Footprint:
    """Of equal layers; sizes in MiB."""
    return Footprint((), (*n_layer * [layer * M], output * M), (*n_layer * [cache * M], 0), overhead * M)


TARGET = part(10, layer=900, cache=100, output=500, overhead=100)  # 10,600 MiB
DRAFT = part(4, layer=180, cache=20, output=100, overhead=50)  # 950 MiB


@pytest.mark.parametrize(
    ("free", "asked", "target", "draft"),
    [
        ((0,), (None, None), (0,), (0,)),
        ((149,), (None, None), (0,), (0,)),
        ((150,), (None, None), (0,), (1,)),  # buffers and the draft's output layer
        ((950,), (None, None), (0,), (5,)),  # the draft fits
        ((1550,), (None, None), (1,), (5,)),  # and buffers and the target's output layer
        ((2500,), (None, None), (2,), (4,)),  # one layer of the target is worth more than the last of the draft
        ((5000,), (None, None), (4,), (5,)),
        ((11_549,), (None, None), (11,), (4,)),
        ((11_550,), (None, None), (11,), (5,)),  # everything
        ((5000,), (4, None), (4,), (5,)),  # requested numbers are kept
        ((5000,), (0, None), (0,), (5,)),
        ((5000,), (-1, None), (11,), (0,)),  # too many: nothing is left
        ((5000,), (None, 2), (5,), (2,)),
        ((5000,), (None, -1), (4,), (5,)),
        ((5000,), (2, 1), (2,), (1,)),
        ((5000,), (-1, -1), (11,), (5,)),
        ((10_600, 950), (None, None), (11, 0), (0, 5)),  # each has its own
        ((11_550, 11_550), (None, None), (11, 0), (0, 5)),  # separate though either would hold both
        ((5000, 950), (None, None), (5, 0), (0, 5)),
        ((3000, 2000), (None, None), (2, 2), (3, 2)),  # parts of the draft between those of the target
        ((10_000, 3000), (None, None), (9, 2), (0, 5)),  # the draft with the smaller part
        ((1000, 1750), (None, None), (0, 2), (5, 0)),  # the draft in one piece, though the last device has some room
        ((450, 550), (None, None), (0, 0), (2, 3)),  # only both together hold the draft
    ],
)
def test_layers_of_both_models_on_the_same_devices(
    free: tuple[int, ...], asked: tuple[int | None, int | None], target: tuple[int, ...], draft: tuple[int, ...]
) -> None:
    devices = [Room(name, MARGIN + size * M) for name, size in zip("AB", free, strict=False)]
    parts = [replace(one, rooms=devices, n_layers=n) for one, n in zip((TARGET, DRAFT), asked, strict=True)]
    for found, split in zip(place(*parts), (target, draft), strict=True):
        assert (tuple(found.counts.values()), found.n_gpu_layers) == (split, sum(split))


# Nine tenths of each layer are experts, of which a token reads a part: among the layers, or on the CPU.
MIXTURE = replace(TARGET, experts=(*10 * [810 * M], 0))
ON_CPU = {CPU: Moved(8100 * M, 8100 * M)}
WITHOUT = replace(TARGET, weights=(*10 * [90 * M], 500 * M), elsewhere=ON_CPU)
WITH_INPUT = replace(WITHOUT, elsewhere={CPU: Moved(28100 * M, 8100 * M, 20000 * M)})


@pytest.mark.parametrize(
    ("target", "share", "free", "layers"),
    [
        (MIXTURE, 1.0, 3500, (3, 4)),  # as a dense one: most is gained by the draft
        (WITHOUT, 1.0, 3500, (11, 5)),  # what is on the CPU needs no room
        (WITHOUT, 1.0, 2500, (6, 5)),
        (WITHOUT, 1 / 8, 2500, (11, 0)),  # each candidate reads further experts, so that the target's layers gain more
        (WITH_INPUT, 1 / 8, 2500, (11, 0)),  # of which it reads one row
        (MIXTURE, 1 / 8, 1050, (1, 2)),
        (MIXTURE, 1 / 8, 2100, (1, 5)),  # it reads little, so that the draft takes a large share of the time
        (MIXTURE, 1.0, 1050, (0, 5)),
        (replace(WITHOUT, staging=1000 * M), 1.0, 3500, (6, 5)),  # experts are copied in during prefill
        (replace(WITHOUT, elsewhere=ON_CPU | {"A": Moved(1000 * M)}), 1.0, 3500, (6, 5)),
        (replace(WITHOUT, n_layers=-1), 1 / 8, 5000, (11, 5)),
    ],
)
def test_experts_count_where_they_are_and_each_token_reads_its_own(
    target: Footprint, share: float, free: int, layers: tuple[int, int]
) -> None:
    rooms = [Room("A", MARGIN + free * M)]
    found = place(replace(target, rooms=rooms, share=share), replace(DRAFT, rooms=rooms))
    assert tuple(layout.n_gpu_layers for layout in found) == layers
    if layers[0] == 11:
        assert found[0].used["A"] == 2500 * M, "weights without experts, caches, and buffers"


# Properties

SIZES = st.integers(0, 40)


@st.composite
def devices(draw: st.DrawFn, names: str = "ABC") -> list[Room]:
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    return [Room(name, MARGIN + draw(st.integers(0, 200))) for name in chosen]


@st.composite
def models(draw: st.DrawFn, names: str = "ABC") -> Footprint:
    weights = draw(st.lists(SIZES, min_size=2, max_size=7))
    cache = draw(st.lists(SIZES, min_size=len(weights) - 1, max_size=len(weights) - 1))
    return Footprint(draw(devices(names)), tuple(weights), (*cache, 0), draw(SIZES), draw(SIZES))


def taken(model: Footprint, counts: Iterable[int]) -> list[int]:
    """Bytes on each device with so many of the last layers on it."""
    sizes, counts = model.sizes, list(counts)
    buffers = model.overhead + (model.staging if sum(counts) < len(sizes) else 0)
    ends = accumulate(counts, initial=len(sizes) - sum(counts))
    return [sum(sizes[a:b]) + (buffers if a < b else 0) for a, b in pairwise(ends)]


@given(models(), st.data())
def test_fill_is_optimal_and_monotonic(model: Footprint, data: st.DataObject) -> None:
    """No other split holds more layers, and more room never holds fewer; a requested number is placed in any case."""
    most, rooms, n_all = 0, model.rooms, len(model.sizes)
    for ends in combinations_with_replacement(range(n_all + 1), len(rooms)):
        counts = [b - a for a, b in pairwise((0, *ends))]
        used = taken(model, counts)
        if all(size <= room.free_bytes - MARGIN for size, room in zip(used, rooms, strict=True)):
            most = max(most, sum(counts))
    layout = fill(model)
    assert layout.n_gpu_layers == most
    assert list(layout.used.values()) == taken(model, layout.counts.values())
    for n in (0, most // 2, -1):
        asked = fill(replace(model, n_layers=n))
        assert not rooms or asked.n_gpu_layers == (n_all if n < 0 else n)
        assert list(asked.used.values()) == taken(model, asked.counts.values())
    more = [Room(room.name, room.free_bytes + data.draw(SIZES)) for room in rooms]
    assert fill(replace(model, rooms=more)).n_gpu_layers >= most


@given(models("ABC"), models("BCD"))
def test_no_device_exceeds_its_room(target: Footprint, draft: Footprint) -> None:
    size = dict([*target.rooms, *draft.rooms])
    target = replace(target, rooms=[Room(room.name, size[room.name]) for room in target.rooms])
    used = dict.fromkeys(size, 0)
    for model, layout in zip((target, draft), place(target, draft), strict=True):
        for name, n_bytes in zip(layout.counts, taken(model, layout.counts.values()), strict=True):
            used[name] += n_bytes
    assert all(n_bytes <= size[name] - MARGIN for name, n_bytes in used.items())


@given(models(), st.one_of(st.none(), st.integers(0, 8)))
def test_llama_cpp_splits_as_planned(model: Footprint, n_layers: int | None) -> None:
    """llama-model.cpp, load_tensors(): the device of a layer is found by an upper bound among float32 shares."""
    layout = fill(replace(model, n_layers=n_layers))
    if not layout.n_gpu_layers:
        return
    counts = list(layout.counts.values())
    ends = np.cumsum(np.array(counts, np.float32))
    ends /= ends[-1]
    shares = np.arange(layout.n_gpu_layers, dtype=np.float32) / np.float32(layout.n_gpu_layers)
    places = np.searchsorted(ends, shares, "right").tolist()
    assert [places.count(i) for i in range(len(counts))] == counts
