"""-ngl auto on real devices, whose free memory is made up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import Run, duo
from tests.serving import RpcServer

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

PROMPT = ("-p", "def fibonacci(n):\n    ", "-n", "8", "--ignore-eos", "--exact", "-t", "1", "-v")

# Code for `before`: so much memory is free on each device, in MiB, beside the margin.
FREE = """
from duo.llama.devices import Device
from duo.spec.placement import MARGIN
free = {free}
Device.memory = property(lambda self: (free.get(self.name, 0) * 2**20 + MARGIN, 2**40))
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    with RpcServer() as first, RpcServer() as second:
        yield [first.name, second.name]


def _offloaded(run: Run) -> list[int]:
    """How many layers llama.cpp put on devices, for each model."""
    return [int(n) for n in re.findall(r"offloaded (\d+)/31 layers", run.stderr)]


@pytest.mark.parametrize(("free", "layers"), [(0, 0), (150, range(2, 30)), (4000, 31)])
def test_as_many_layers_as_fit(
    demo_pair: tuple[Path, Path], servers: list[str], free: int, layers: int | range
) -> None:
    target = demo_pair[0]
    run = duo("-m", target, *PROMPT, "--rpc", servers[0], before=FREE.format(free={"RPC0": free}))
    said = re.search(r"^duo: layers on devices \(-ngl\): target (\d+) of 31( on RPC0)?$", run.stderr, re.MULTILINE)
    assert said is not None, run.stderr
    n = int(said[1])
    assert n in layers if isinstance(layers, range) else n == layers
    assert bool(said[2]) == (n > 0)
    assert _offloaded(run) == [n]
    assert run.stdout == duo("-m", target, *PROMPT).stdout


def test_what_does_not_fit_one_device_goes_on_to_the_next(demo_pair: tuple[Path, Path], servers: list[str]) -> None:
    options = ("-m", demo_pair[0], *PROMPT, "--rpc", ",".join(servers))
    run = duo(*options, before=FREE.format(free={"RPC0": 200, "RPC1": 120}))
    said = re.search(r"target (\d+) of 31 on RPC0, RPC1", run.stderr)
    assert said is not None, run.stderr
    assert _offloaded(run) == [int(said[1])]
    on = [int(n) for n in re.findall(r"RPC\d\[.*?\] model buffer size = +(\d+)", run.stderr)]
    assert len(on) == 2
    assert on[0] <= 200
    assert on[1] <= 120


def test_a_number_is_taken_as_it_is(demo_pair: tuple[Path, Path], servers: list[str]) -> None:
    run = duo("-m", demo_pair[0], *PROMPT, "--rpc", servers[0], "-ngl", "5", before=FREE.format(free={}))
    assert _offloaded(run) == [5]
    assert "layers on devices" not in run.stderr
