"""duo lead: its API keys, and the addresses that it shows."""

from __future__ import annotations

from pathlib import Path

from duo.cli.commands.lead import addresses
from duo.cli.inputs import api_keys


def test_api_keys_are_joined_from_options_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("sk-four\n\n  sk-five  \n", encoding="utf-8")
    assert api_keys(["sk-one, sk-two", "sk-three"], file) == ["sk-one", "sk-two", "sk-three", "sk-four", "sk-five"]
    assert api_keys(None, None) == []


def test_the_address_for_clients() -> None:
    assert addresses("http://10.0.0.1:1", "box") == ("http://10.0.0.1:1", "")
    for every, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
        expected = f"http://{here}:8123", " (other machines: http://box:8123/v1)"
        assert addresses(f"http://{every}:8123", "box") == expected
