"""duo lead: options that it refuses before it loads a model, and its API keys."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from duo.cli.commands.lead import _addresses
from duo.cli.inputs import api_keys
from tests.command import Argument, assert_refused
from tests.unit.cli.runner import duo


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], ["--host 0.0.0.0", "--api-key"]),
        (["--host", "lead.example"], ["--host lead.example", "--api-key"]),
        (["--api-key", ""], ["must not be empty"]),
        (["--api-key", "a,,b"], ["must not be empty"]),
        (["--api-key-file", os.devnull], ["must not be empty"]),
        (["--api-key-file", "/no/such/file"], ["--api-key-file", "No such file"]),
        (["--api-key", "ü"], ["characters"]),
    ],
)
def test_usage_errors(options: list[Argument], said: list[str]) -> None:
    assert_refused(duo("lead", "-m", "none.gguf", "--port", "0", *options), *said, status=2)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(duo("lead", "-m", "none.gguf", "--port", port), f"cannot listen on 127.0.0.1:{port}", status=2)


@pytest.mark.parametrize(
    ("url", "here", "elsewhere"),
    [
        ("http://127.0.0.1:5555", "http://127.0.0.1:5555", ""),
        ("http://0.0.0.0:8123", "http://127.0.0.1:8123", " (other machines: http://box:8123/v1)"),
        ("http://[::]:8123", "http://[::1]:8123", " (other machines: http://box:8123/v1)"),
        ("http://10.0.0.1:1", "http://10.0.0.1:1", ""),
    ],
)
def test_the_address_for_clients(url: str, here: str, elsewhere: str) -> None:
    assert _addresses(url, "box") == (here, elsewhere)


def test_api_keys_are_joined_from_options_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("sk-four\n\n  sk-five  \n", encoding="utf-8")
    assert api_keys(["sk-one, sk-two", "sk-three"], file) == ["sk-one", "sk-two", "sk-three", "sk-four", "sk-five"]
    assert api_keys(None, None) == []
