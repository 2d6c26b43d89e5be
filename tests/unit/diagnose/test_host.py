"""The hardware of a machine, read from directories like those of other machines."""

from pathlib import Path

import pytest

from duo.diagnose import host as host_module
from duo.diagnose.host import Gpu, measure_bandwidth, read_host


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "instructions"),
    [
        ("model name\t: Some CPU\nflags\t\t: fpu avx avx2 fma\n\nprocessor\t: 1\n", "x86_64", ("AVX", "AVX2", "FMA")),
        ("Features\t: fp asimd asimddp i8mm\n", "aarch64", ("DOTPROD", "MATMUL_INT8")),
        ("", "riscv64", ()),
    ],
)
def test_cpu_and_instructions(tmp_path: Path, cpuinfo: str, machine: str, instructions: tuple[str, ...]) -> None:
    if cpuinfo:
        write(tmp_path / "proc/cpuinfo", "processor\t: 0\n" + cpuinfo)
    host = read_host(tmp_path, "Linux", machine)
    assert (host.system, host.machine, host.instructions, host.gpus) == ("Linux", machine, instructions, ())
    assert host.cpu
    assert ("Some CPU" in cpuinfo) == (host.cpu == "Some CPU")
    assert host.memory_total > 1 << 28


def test_gpus_of_drivers_of_programs_and_of_systems(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    write(program, "#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'\nexit 9\n")
    program.chmod(0o755)
    assert read_host(tmp_path).gpus == (), "a program alone is no GPU"
    write(program, "#!/bin/sh\necho 'GPU 0: NVIDIA A10 (UUID: GPU-1)'\n")
    assert read_host(tmp_path).gpus == (Gpu("NVIDIA", "NVIDIA A10"),)
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        write(tmp_path / f"proc/driver/nvidia/gpus/{bus}/information", "Model: \t\t NVIDIA A10\nIRQ: 42\n")
    for number, vendor in ((128, "0x1002"), (129, "0x1af4"), (130, "0x8086")):
        write(tmp_path / f"dev/dri/renderD{number}", "")
        write(tmp_path / f"sys/class/drm/renderD{number}/device/vendor", vendor + "\n")
    vendors = [gpu.vendor for gpu in read_host(tmp_path, "Darwin", "arm64").gpus]
    assert vendors == ["NVIDIA", "NVIDIA", "AMD", "Intel", "Apple"]


def test_the_rate_of_one_thread_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure_bandwidth(2, 64 << 20)
    assert found is not None
    assert (found.n_threads, found.all_threads >= found.one_thread > 1e7) == (2, True)
    monkeypatch.setattr(host_module, "available_bytes", lambda: 100 << 20)  # of which a quarter may be used
    assert measure_bandwidth(1) is None
