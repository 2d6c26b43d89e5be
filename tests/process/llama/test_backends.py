"""The back ends of this build."""

from __future__ import annotations

from duo.llama.devices import list_backends
from duo.llama.library import supports_rpc


def test_the_cpu_is_always_there_and_rpc_if_it_was_built() -> None:
    names = list_backends()
    assert "CPU" in names
    assert ("RPC" in names) == supports_rpc()
