"""The hardware of a machine, read from trees that look like those of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.diagnose.host import Gpu, read_host


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    host = read_host(tmp_path, "Plan9", "riscv64")
    assert (host.system, host.machine, host.instructions, host.gpus) == ("Plan9", "riscv64", (), ())
    assert host.cpu


def test_this_machine() -> None:
    host = read_host()
    assert host.memory_total > 1 << 28


def test_processors(tmp_path: Path) -> None:
    write(
        tmp_path / "proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2 fma\n\nprocessor\t: 1\n",
    )
    host = read_host(tmp_path, "Linux", "x86_64")
    assert (host.cpu, host.instructions) == ("Some CPU", ("AVX", "AVX2", "FMA"))
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n")
    assert read_host(tmp_path, "Linux", "aarch64").instructions == ("DOTPROD", "MATMUL_INT8")


def test_nvidias_driver_names_its_cards(tmp_path: Path) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        write(tmp_path / f"proc/driver/nvidia/gpus/{bus}/information", "Model: \t\t NVIDIA A10\nIRQ: 42\n")
    assert read_host(tmp_path).gpus[:2] == (Gpu("NVIDIA", "NVIDIA A10"),) * 2


def test_or_its_program_does(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    write(program, "#!/bin/sh\necho 'GPU 0: NVIDIA A10 (UUID: GPU-1)'\n")
    program.chmod(0o755)
    assert read_host(tmp_path).gpus == (Gpu("NVIDIA", "NVIDIA A10"),)
    write(program, "#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'\nexit 9\n")
    assert read_host(tmp_path).gpus == (), "a program alone is no card"


def test_render_nodes_of_amd_and_intel(tmp_path: Path) -> None:
    for number, vendor in ((128, "0x1002"), (129, "0x1af4"), (130, "0x8086")):
        write(tmp_path / f"dev/dri/renderD{number}", "")
        write(tmp_path / f"sys/class/drm/renderD{number}/device/vendor", vendor + "\n")
    write(tmp_path / "dev/dri/renderD131", "")  # of unknown vendor
    assert [gpu.vendor for gpu in read_host(tmp_path).gpus] == ["AMD", "Intel"]


def test_a_mac(tmp_path: Path) -> None:
    assert [gpu.vendor for gpu in read_host(tmp_path, "Darwin", "arm64").gpus] == ["Apple"]
    assert read_host(tmp_path, "Darwin", "x86_64").gpus == ()
