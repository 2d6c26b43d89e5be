"""What is known without llama.cpp: its back ends, variables that hide devices, command lines of duo's processes."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from duo.errors import BusyError
from duo.llama import devices
from duo.llama.build import GPU_BACKENDS, child_command
from duo.llama.devices import built_gpu_backends
from tests.command import ROOT


def test_a_back_end_that_did_not_start_is_known_by_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "ggml", lambda: SimpleNamespace(_name=str(tmp_path / "libggml.so")))
    monkeypatch.setattr(devices, "list_backends", lambda: ["CPU"])
    for name in ("libggml.so", "libggml-cpu.so", "libggml-rpc.so", "libggml-base.so.0"):
        (tmp_path / name).touch()
    assert built_gpu_backends() == []
    for name in ("libggml-vulkan.so", "libggml-hip.so.0", "libggml-metal.dylib"):
        (tmp_path / name).touch()
    assert set(built_gpu_backends()) == {"Vulkan", "ROCm", "MTL"}


def test_the_document_has_every_variable() -> None:
    document = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in document for names in GPU_BACKENDS.values() for name in names)


def test_a_function_of_a_module_gets_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('from the current directory')")
    command = child_command("json.tool", "--compact", "-", function="main")
    done = subprocess.run(command, input="[1, 2]", capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.stderr) == ("[1,2]\n", "")


def test_in_an_archive_the_program_is_duo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/opt/duo/duo")
    assert child_command("duo.remote.process", "{}") == ["/opt/duo/duo", "--call", "duo.remote.process:main", "{}"]
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(BusyError, match="not known where"):
        child_command("duo.remote.process")


@pytest.mark.skipif(sys.platform != "linux", reason="another library of C++")
def test_the_library_of_cpp_comes_before_those_of_llama_cpp() -> None:
    code = "import ctypes, duo.llama, sys; print(hasattr(ctypes.CDLL(None), '_ZSt4cout'), 'llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
