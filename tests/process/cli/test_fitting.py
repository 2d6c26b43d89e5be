"""-ngl auto on real RPC devices, whose free memory is scripted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.llama.library import supports_rpc
from tests.command import duo
from tests.serving import RpcServer

pytestmark = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")

TEXT = ("-p", "def fibonacci(n):\n    ", "-n", "4", "--ignore-eos", "-t", "1", "-v")

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


@pytest.mark.parametrize(
    ("free", "layers"),
    [({"RPC0": 0}, range(1)), ({"RPC0": 150}, range(2, 30)), ({"RPC0": 200, "RPC1": 120}, range(5, 31))],
)
def test_as_many_layers_as_fit(
    demo_pair: tuple[Path, Path], servers: list[str], free: dict[str, int], layers: range
) -> None:
    run = duo("-m", demo_pair[0], *TEXT, "--rpc", ",".join(servers[: len(free)]), before=FREE.format(free=free))
    said = re.search(r"^duo: layers on devices \(-ngl\): target (\d+) of 31(?: on (.+))?$", run.stderr, re.MULTILINE)
    assert said is not None, run.stderr
    assert int(said[1]) in layers
    assert said[2] == (", ".join(free) if layers != range(1) else None)
    assert re.findall(r"offloaded (\d+)/31 layers", run.stderr) == [said[1]], "and llama.cpp has done so"
    for name, size in re.findall(r"(RPC\d)\[.*?\] model buffer size = +(\d+)", run.stderr):
        assert int(size) <= free[name]


def test_a_number_of_layers_is_not_changed(demo_pair: tuple[Path, Path], servers: list[str]) -> None:
    run = duo("-m", demo_pair[0], *TEXT, "--rpc", servers[0], "-ngl", "5", before=FREE.format(free={}))
    assert re.findall(r"offloaded (\d+)/31 layers", run.stderr) == ["5"]
    assert "layers on devices" not in run.stderr


# Code for `before`: so many MiB are free, of more.
EXACTLY = "from duo.llama.devices import Device; Device.memory = property(lambda self: ({} * 2**20, 2**40))"


@pytest.mark.parametrize(
    ("free", "arguments", "said"),
    [
        (100, ["-ngl", "31"], "-ngl: the layers need 0.3 GiB on RPC0, and 0.1 GiB are free: 0 of the 31 layers"),
        (600, ["-ngl", "31", "-c", "131072"], "and 0.6 GiB are free: at most 25856 tokens fit (-c); fewer layers"),
        (600, ["-ngl", "31", "-c", "1024"], ""),
    ],
)
def test_more_than_the_device_has_is_refused(
    demo_pair: tuple[Path, Path], servers: list[str], free: int, arguments: list[str], said: str
) -> None:
    run = duo("-m", demo_pair[0], *TEXT[:-1], "--rpc", servers[0], *arguments, before=EXACTLY.format(free))
    assert run.status == (1 if said else 0), run.stderr
    assert said in run.stderr
    assert run.stderr.count("error:") == bool(said)
