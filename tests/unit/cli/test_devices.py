"""What is said of GPUs that llama.cpp does not find, and of RPC servers that cannot be reached or do not answer."""

import socket
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from duo.cli import load
from duo.config import EngineConfig
from duo.llama.devices import Device
from duo.llama.library import supports_rpc
from tests.command import ONE_EACH, assert_refused, models
from tests.serving import free_port
from tests.unit.cli.runner import duo

HIDDEN = {"GGML_VK_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}
SAID = "llama.cpp finds no GPU for Vulkan with GGML_VK_VISIBLE_DEVICES=3 (see duo doctor)"
CARD = Device("Vulkan0", "a card", "GPU", 0)


@pytest.mark.parametrize(("built", "found"), [(["Vulkan"], []), ([], []), (["Vulkan"], [CARD])])
def test_commands_say_what_is_missing(built: list[str], found: list[Device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "built_gpu_backends", lambda: built)
    monkeypatch.setattr(load, "gpus", lambda: found)
    listed = duo("--list-devices", env=HIDDEN)
    assert "CPU: " in listed.text
    assert (listed.status, listed.stderr) == (0, f"duo: warning: {SAID}\n" if built and not found else "")
    if found:
        return
    why = SAID if built else "llama.cpp was built without a GPU backend; to build it with one: "
    run = ("-m", "missing.gguf", "-md", "missing.gguf", "-p", "x")
    assert_refused(duo(*run, "-dev", "Vulkan0", env=HIDDEN), f"-dev: {why}", status=2)
    for options, said in (("-ngl 99", "-ngl"), ("-ngld all", "-ngld"), ("-ngl 1 -ngld 1", "-ngl and -ngld")):
        (warning,) = duo(*run, *options.split(), env=HIDDEN).warnings
        assert warning.startswith(f"duo: warning: {said}: all layers stay on the CPU: {why}")
    assert duo(*run, "-ngl", "0", "-ngld", "auto", env=HIDDEN).warnings == []


# --rpc: servers that cannot be reached or do not answer, as scripted sockets


needs_rpc = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
TEXT = ("-p", "the cat", "-n", "4", *ONE_EACH)


@needs_rpc
@pytest.mark.parametrize(
    ("server", "why"),
    [("127.0.0.1:{port}", "refused"), ("no-such-host.invalid:50052", ""), ("a..b:1", "invalid host name")],
)
def test_a_server_that_cannot_be_reached(tiny: Path, server: str, why: str) -> None:
    name = server.format(port=free_port())
    assert_refused(duo("-m", tiny, *TEXT, "--rpc", name), f"{name} cannot be reached", why)


@needs_rpc
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_a_server_of_another_protocol_and_one_that_hangs(tiny: Path, answer: bytes | None) -> None:
    """It answers the connection with these bytes and closes it; None: it accepts and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening, mock.patch("duo.llama.devices._PROBE_S", 0.1):

        def serve() -> None:
            if answer is not None:
                with listening.accept()[0] as connection:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        name = f"127.0.0.1:{listening.getsockname()[1]}"
        run = duo("-m", tiny, *TEXT, "--rpc", name)
        thread.join()
    assert_refused(run, name, *(["does not answer", "another client"] if answer is None else []))


@needs_rpc
def test_without_drafting_the_drafts_server_is_not_used(tiny: Path) -> None:
    run = duo(*models(tiny, tiny), *TEXT, "--rpc", f"127.0.0.1:{free_port()}", "--draft", "0")
    assert (run.status, run.warnings) == (0, [])


_ON_RPC = ("127.0.0.1:1",)


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"schedule": "auto"}, False), ({"schedule": "async"}, False), ({"schedule": "off"}, True),
        ({"draft_rpc_servers": _ON_RPC}, True), ({"draft_rpc_servers": _ON_RPC, "back_port": 0}, False),
    ],
)  # fmt: skip
def test_a_draft_worker_prepares_outcomes_where_it_drafts_and_is_not_on_rpc(
    settings: dict[str, Any], warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    slot = mock.Mock(draft_model=None, in_turns=False, can_speculate=False, remote=mock.Mock())
    config = EngineConfig(branches=2, **settings)
    load._say_what_is_unusual(slot, config, is_rejection=False)
    assert ("--branches 2 has no effect" in capsys.readouterr().err) is warns


def test_options_of_a_draft_have_no_effect_without_one(tiny: Path) -> None:
    """A preset or the environment may have them for all runs."""
    options = "-cmoed -ncmoed 2 -otd x=CPU -ngld 3 -devd none -td 1"
    plain, run = (duo("-m", tiny, "-p", "a", "-n", "4", *each.split()) for each in ("", options))
    assert (run.status, run.stdout, run.warnings) == (0, plain.stdout, [])
