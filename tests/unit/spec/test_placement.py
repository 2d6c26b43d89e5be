from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.spec.placement import MARGIN, Figures, Footprint, Layout, Room, fill, place

M = 1 << 20


def footprint(n_layer: int, layer: int, cache: int, output: int, overhead: int) -> Footprint:
    """Of equal layers; sizes in MiB."""
    return Footprint((layer * M,) * n_layer, output * M, (cache * M,) * n_layer, overhead * M)


TARGET = footprint(10, layer=900, cache=100, output=500, overhead=100)  # 10,600 MiB
DRAFT = footprint(4, layer=180, cache=20, output=100, overhead=50)  # 950 MiB


def rooms(*sizes: int, names: str = "AB") -> list[Room]:
    """Devices with so many MiB beside the margin."""
    return [Room(name, MARGIN + size * M) for name, size in zip(names, sizes, strict=False)]


# One device


@pytest.mark.parametrize(
    ("free", "target_layers", "draft_layers"),
    [
        (0, 0, 0),
        (149, 0, 0),
        (150, 0, 1),  # buffers and the draft's output layer
        (949, 0, 4),
        (950, 0, 5),  # the draft fits
        (1550, 1, 5),  # and buffers and the target's output layer
        (2550, 2, 5),
        (5000, 4, 5),
        (10_550, 10, 5),
        (11_550, 11, 5),  # everything
        (50_000, 11, 5),
    ],
)
def test_one_device(free: int, target_layers: int, draft_layers: int) -> None:
    placement = place(TARGET, DRAFT, rooms(free), rooms(free))
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (target_layers, draft_layers)


def test_less_than_the_margin_is_nothing() -> None:
    room = [Room("A", MARGIN - 1)]
    assert place(TARGET, DRAFT, room, room).draft.n_gpu_layers == 0


def test_without_devices_all_is_left_to_the_host() -> None:
    placement = place(TARGET, DRAFT, [], [], target_layers=-1)
    assert placement.target == placement.draft == Layout(0, (), ())


def test_files_without_weights_are_no_trouble() -> None:
    nothing = Footprint((), 0, (), 0)
    assert place(nothing, nothing, rooms(10), rooms(10)).target.n_gpu_layers == 1


# Which of them goes first


@pytest.mark.parametrize(("acceptance", "draft_first"), [(0.02, False), (0.2, False), (0.6, True), (0.9, True)])
def test_a_draft_that_is_seldom_right_comes_second(acceptance: float, draft_first: bool) -> None:
    placement = place(TARGET, DRAFT, rooms(5000), rooms(5000), figures=Figures(acceptance=acceptance))
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == ((4, 5) if draft_first else (5, 2))


@pytest.mark.parametrize(("free", "target_layers", "draft_layers"), [(2500, 2, 4), (11_549, 11, 4)])
def test_one_layer_of_the_target_may_be_worth_more_than_the_last_of_the_draft(
    free: int, target_layers: int, draft_layers: int
) -> None:
    placement = place(TARGET, DRAFT, rooms(free), rooms(free))
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (target_layers, draft_layers)


@pytest.mark.parametrize(("bytes_per_s", "target_layers"), [(400e9, 4), (20e9, 0)])
def test_a_device_that_is_slower_than_the_host_is_for_the_draft_alone(bytes_per_s: float, target_layers: int) -> None:
    room = [Room("A", MARGIN + 5000 * M, bytes_per_s)]
    placement = place(TARGET, DRAFT, room, room)
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (target_layers, 5)


# Several devices


@pytest.mark.parametrize(
    ("sizes", "target_split", "draft_split"),
    [
        ((10_600, 950), (11, 0), (0, 5)),  # each has its own
        ((950, 10_600), (0, 11), (5, 0)),
        ((11_550, 11_550), (11, 0), (0, 5)),  # apart though either would take both
        ((5000, 950), (5, 0), (0, 5)),
        ((3000, 2000), (2, 2), (3, 2)),  # pieces of the draft between those of the target
        ((10_000, 3000), (9, 2), (0, 5)),  # the draft beside the smaller part
        ((1000, 1750), (0, 2), (5, 0)),  # the draft in one piece, though the last device has room for some of it
        ((950, 0), (0, 0), (5, 0)),
        ((0, 950), (0, 0), (0, 5)),
        ((450, 550), (0, 0), (2, 3)),  # only both together take the draft
    ],
)
def test_two_devices(sizes: tuple[int, ...], target_split: tuple[int, ...], draft_split: tuple[int, ...]) -> None:
    placement = place(TARGET, DRAFT, rooms(*sizes), rooms(*sizes))
    assert (placement.target.tensor_split, placement.draft.tensor_split) == (target_split, draft_split)
    assert placement.target.n_gpu_layers == sum(target_split)
    assert placement.draft.n_gpu_layers == sum(draft_split)


def test_a_target_elsewhere_leaves_the_draft_its_device() -> None:
    placement = place(TARGET, DRAFT, rooms(5000, names="R"), rooms(950))
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == (5, 5)


def test_a_device_of_both_is_shared_wherever_it_is_in_the_lists() -> None:
    placement = place(TARGET, DRAFT, rooms(11_550, 0, names="RA"), rooms(11_550, names="R"))
    assert placement.target.tensor_split == (11, 0)
    assert placement.draft.tensor_split == (5,)
    assert place(TARGET, DRAFT, rooms(11_549, 0, names="RA"), rooms(11_549, names="R")) != placement


def test_unequal_layers_are_counted_from_the_last() -> None:
    model = Footprint((500 * M, 10 * M, 20 * M, 30 * M), 40 * M, (1 * M, 2 * M, 3 * M, 4 * M), 5 * M)
    assert fill(model, rooms(78)).n_gpu_layers == 1
    assert fill(model, rooms(79)) == Layout(2, (2,), (79 * M,))
    assert fill(model, rooms(28, 79)).tensor_split == (1, 2)
    assert fill(model, rooms(27, 79)).tensor_split == (0, 2)


# Numbers that are asked for


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ((4, None), (4, 5)),
        ((0, None), (0, 5)),
        ((-1, None), (11, 0)),  # too much: nothing is left
        ((99, None), (11, 0)),
        ((None, 2), (5, 2)),
        ((None, 0), (5, 0)),
        ((None, -1), (4, 5)),
        ((2, 1), (2, 1)),
        ((-1, -1), (11, 5)),
    ],
)
def test_what_is_asked_for_is_kept(asked: tuple[int | None, int | None], given: tuple[int, int]) -> None:
    placement = place(TARGET, DRAFT, rooms(5000), rooms(5000), *asked)
    assert (placement.target.n_gpu_layers, placement.draft.n_gpu_layers) == given


def test_what_does_not_fit_is_spread_in_proportion() -> None:
    assert fill(TARGET, rooms(3000, 1000), -1).tensor_split == (8, 3)
    assert fill(TARGET, rooms(0, 0), 10).tensor_split == (5, 5)


def test_what_fits_is_asked_of_few_devices() -> None:
    assert fill(TARGET, rooms(10_000, 3000), 3).tensor_split == (0, 3)


# Properties

SIZES = st.integers(0, 40)


@st.composite
def models(draw: st.DrawFn) -> Footprint:
    layers = draw(st.lists(SIZES, min_size=1, max_size=6))
    cache = draw(st.lists(SIZES, min_size=len(layers), max_size=len(layers)))
    return Footprint(tuple(layers), draw(SIZES), tuple(cache), draw(SIZES))


@st.composite
def devices(draw: st.DrawFn, names: str = "ABC") -> list[Room]:
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    return [Room(name, draw(st.integers(0, 200))) for name in chosen]


def taken(model: Footprint, counts: Iterable[int]) -> list[int]:
    """Bytes on each device with so many of the last layers on it."""
    sizes = [*(weights + cache for weights, cache in zip(model.layers, model.cache, strict=True)), model.output]
    counts = list(counts)
    ends = accumulate(counts, initial=len(sizes) - sum(counts))
    return [sum(sizes[a:b]) + (model.overhead if a < b else 0) for a, b in pairwise(ends)]


@given(models(), devices())
def test_no_other_split_takes_more_layers(model: Footprint, device: list[Room]) -> None:
    n_all = len(model.layers) + 1
    most = 0
    for ends in combinations_with_replacement(range(n_all + 1), len(device)):
        counts = [b - a for a, b in pairwise((0, *ends))]
        used = taken(model, counts)
        if all(size <= room.free_bytes for size, room in zip(used, device, strict=True)):
            most = max(most, sum(counts))
    layout = fill(model, device, margin=0)
    assert layout.n_gpu_layers == most == sum(layout.tensor_split)
    assert list(layout.used) == taken(model, layout.tensor_split)


@given(models(), models(), devices("ABC"), devices("BCD"), st.integers(0, 20))
def test_no_device_has_more_than_its_room(
    target: Footprint, draft: Footprint, target_rooms: list[Room], draft_rooms: list[Room], margin: int
) -> None:
    size = {room.name: room.free_bytes for room in (*target_rooms, *draft_rooms)}
    target_rooms = [Room(room.name, size[room.name]) for room in target_rooms]
    placement = place(target, draft, target_rooms, draft_rooms, margin=margin)
    used = dict.fromkeys(size, 0)
    for model, own, layout in (
        (target, target_rooms, placement.target),
        (draft, draft_rooms, placement.draft),
    ):
        for room, n_bytes in zip(own, taken(model, layout.tensor_split), strict=True):
            used[room.name] += n_bytes
    assert all(n_bytes <= max(0, size[name] - margin) for name, n_bytes in used.items())


@given(models(), devices(), st.data())
def test_more_room_never_takes_fewer_layers(model: Footprint, device: list[Room], data: st.DataObject) -> None:
    more = [Room(room.name, room.free_bytes + data.draw(SIZES)) for room in device]
    assert fill(model, more, margin=0).n_gpu_layers >= fill(model, device, margin=0).n_gpu_layers


@given(models(), models(), st.integers(0, 600), SIZES)
def test_in_one_order_more_room_never_takes_fewer_bytes(
    first: Footprint, then: Footprint, size: int, more: int
) -> None:
    def total(size: int) -> int:
        (used,) = fill(first, [Room("A", size)], margin=0).used
        return used + sum(fill(then, [Room("A", size - used)], margin=0).used)

    assert total(size + more) >= total(size)


@given(models(), models(), st.integers(0, 100))
def test_what_fits_whole_goes_whole(target: Footprint, draft: Footprint, spare: int) -> None:
    every = [len(target.layers) + 1], [len(draft.layers) + 1]
    room = [Room("A", taken(target, every[0])[0] + taken(draft, every[1])[0] + spare)]
    placement = place(target, draft, room, room, margin=0)
    assert [placement.target.n_gpu_layers] == every[0]
    assert [placement.draft.n_gpu_layers] == every[1]


@given(models(), devices(), st.one_of(st.none(), st.integers(0, 8)))
def test_llama_cpp_splits_as_it_is_told(model: Footprint, device: list[Room], n_layers: int | None) -> None:
    """llama-model.cpp, load_tensors(): the device of a layer is found by an upper bound among float32 shares."""
    layout = fill(model, device, n_layers, margin=0)
    if not layout.n_gpu_layers:
        return
    ends = np.cumsum(np.array(layout.tensor_split, np.float32))
    ends /= ends[-1]
    places = [
        np.searchsorted(ends, np.float32(i) / np.float32(layout.n_gpu_layers), "right")
        for i in range(layout.n_gpu_layers)
    ]
    assert [places.count(i) for i in range(len(device))] == list(layout.tensor_split)
