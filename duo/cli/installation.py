"""This installation, as `duo doctor` describes it, and the commands that build another llama.cpp."""

import logging
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

import msgspec

import duo
from duo.diagnose.host import AMD, APPLE, INTEL, NVIDIA, Bandwidth, Host, measure_bandwidth, read_host
from duo.engine.cores import allowed_cores, split_cores, usable_cores
from duo.errors import DeviceError, UsageError
from duo.llama.build import GPU_BACKENDS, child_command, hiding_variables, is_frozen, pip_install
from duo.llama.limits import Limit, cpu_limit, memory_limit
from duo.models.storage import cache_dir, config_dir

LLAMA = "llama-cpp-python"
SLOWING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # environment variables that can slow down every decode
NATIVE = "native"  # all instruction sets of this CPU
RPC, CUDA, METAL, VULKAN = "RPC", "CUDA", "MTL", "Vulkan"  # backends, as llama.cpp names them
# The CMake option of each.
_FLAGS = {
    RPC: "GGML_RPC", CUDA: "GGML_CUDA", METAL: "GGML_METAL", VULKAN: "GGML_VULKAN", "ROCm": "GGML_HIP",
    "MUSA": "GGML_MUSA", "SYCL": "GGML_SYCL", "OpenCL": "GGML_OPENCL", "CANN": "GGML_CANN", "BLAS": "GGML_BLAS",
    NATIVE: "GGML_NATIVE",
}  # fmt: skip
# The fastest, or the simplest to build, by vendor.
_BACKENDS = {NVIDIA: CUDA, APPLE: METAL, AMD: VULKAN, INTEL: VULKAN}
_VARIABLES = (*SLOWING, "LLAMA_ARG_THREADS")
_LOAD_S = 60  # timeout for loading llama.cpp
_GPU_KINDS = ("GPU", "IGPU")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of llama.cpp; memory in bytes."""

    name: str
    description: str
    kind: str  # CPU, GPU, IGPU, ACCEL, META or RPC
    memory_free: int
    memory_total: int


@dataclass(frozen=True, slots=True)
class Build:
    """What llama.cpp was built with, or why it cannot be loaded."""

    failure: str | None = None
    version: str | None = None
    backends: tuple[str, ...] = ()
    devices: tuple[DeviceFacts, ...] = ()
    features: tuple[str, ...] = ()  # instruction sets and libraries
    rpc: bool = False
    heads: bool = False  # whether EAGLE-3 heads and MTP layers can be used
    gpu: bool = False  # whether layers can be offloaded to a GPU
    gpu_backends: tuple[str, ...] = ()  # also those that are not in `backends`, because they could not start
    messages: tuple[str, ...] = ()  # errors of llama.cpp while it looked for devices


@dataclass(frozen=True, slots=True)
class Hidden:
    """Environment variables without which llama.cpp can be loaded and finds these devices."""

    variables: tuple[str, ...]
    devices: tuple[DeviceFacts, ...]


@dataclass(frozen=True, slots=True)
class Cores:
    """Numbers of processors."""

    logical: int
    allowed: int  # logical processors in the affinity mask
    quota: float | None  # of a container or service, in CPUs
    usable: int  # physical cores within mask and quota


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that duo writes to, or why it cannot."""

    path: str | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything; the fields are those of --json."""

    versions: dict[str, str | None]
    tested_range: str | None  # of llama-cpp-python
    host: Host
    cores: Cores
    limits: dict[str, Limit | None]  # of a container or service: `cpu`, `memory` in bytes
    threads: dict[str, int]  # defaults: `alone` without a draft, `target` and `draft` when concurrent
    load: float  # cores in use by all programs, mean of the last minute
    bandwidth: Bandwidth | None
    build: Build
    hidden: Hidden | None  # looked for only where `build` has no GPU
    optional: dict[str, str | None]  # versions of optional packages; None: not installed
    folders: dict[str, Folder]
    environment: dict[str, str]


def read_installation() -> Installation:
    """Inspect this installation; takes some seconds."""
    build, n_cores, quota = _read_build(), usable_cores(), cpu_limit()
    target, draft = split_cores(None, None, n_cores)
    return Installation(
        versions={
            "duo": duo.__version__, "Python": platform.python_version(), LLAMA: version_of(LLAMA),
            "llama.cpp": build.version, "numpy": version_of("numpy"),
        },
        tested_range=tested_range(),
        host=read_host(),
        cores=Cores(os.cpu_count() or 1, len(allowed_cores()), quota.value if quota else None, n_cores),
        limits={"cpu": quota, "memory": memory_limit()},
        threads={"alone": n_cores, "target": target, "draft": draft},
        load=os.getloadavg()[0],
        bandwidth=measure_bandwidth(n_cores),
        build=build,
        hidden=_find_hidden(build),
        optional={"huggingface_hub": version_of("huggingface_hub")},
        folders={"config": _folder(config_dir), "cache": _folder(cache_dir)},
        environment={name: os.environ[name] for name in _VARIABLES if name in os.environ} | hiding_variables(),
    )  # fmt: skip


def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    return next((found.version for found in distributions(name=package)), None)


def tested_range() -> str | None:
    """The versions of llama-cpp-python that duo requires, such as `>=1.2,<1.3`; None if duo is not installed."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - slow, and only for advice

    wanted = (Requirement(line) for found in distributions(name="duo-llm") for line in found.requires or ())
    ranges = (sorted(map(str, package.specifier), reverse=True) for package in wanted if package.name == LLAMA)
    return next((",".join(parts) for parts in ranges), None)


def print_build() -> None:
    """Print the Build of this process as JSON: started by _read_build()."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")  # to stderr
    from duo.llama import devices, hidden_rows, library  # noqa: PLC0415 - importing it may end the process
    from duo.llama.build import versions  # noqa: PLC0415

    found = devices.list_devices()
    build = Build(
        version=versions()["llama.cpp"],
        backends=tuple(devices.list_backends()),
        devices=tuple(DeviceFacts(one.name, one.description, one.kind, *one.memory) for one in found),
        features=tuple(re.findall(r"(\w+) = 1", library.system_info())),
        rpc=library.supports_rpc(),
        heads=hidden_rows.supports_heads(),
        gpu=any(one.kind in _GPU_KINDS for one in found),
        gpu_backends=tuple(devices.built_gpu_backends()),
    )
    print(msgspec.json.encode(build).decode(), flush=True)  # noqa: T201 - the output


def _read_build(without: Sequence[str] = ()) -> Build:
    """llama.cpp in a child process: an unsupported instruction ends the process. `without`: variables to unset."""
    command = child_command("duo.cli.installation", function="print_build")
    env = {name: value for name, value in os.environ.items() if name not in without}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_LOAD_S, env=env
        )
    except subprocess.TimeoutExpired:
        return Build(f"timed out after {_LOAD_S} s: a GPU driver may hang")
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode < 0:
        return Build(f"the process was killed by a signal: {signal.strsignal(-done.returncode)}")
    if done.returncode:
        return Build((lines or [f"exit status {done.returncode}"])[-1])
    build = msgspec.json.decode(done.stdout.splitlines()[-1], type=Build)  # a driver may have printed lines before
    # Of stderr only llama.cpp's lines: drivers write there, too.
    return replace(build, messages=tuple(dict.fromkeys(line for line in lines if line.startswith("ggml_"))))


def _find_hidden(build: Build) -> Hidden | None:
    """Start llama.cpp without the variables that may hide devices: without each of them, then without all."""
    # A wrong value can also let a back end fail.
    names = () if build.gpu else tuple(hiding_variables(GPU_BACKENDS if build.failure else build.gpu_backends))
    for removed in [*((name,) for name in names), names] if names else ():
        found = _read_build(removed)
        if found.gpu or (build.failure and not found.failure):
            return Hidden(removed, tuple(device for device in found.devices if device.kind in _GPU_KINDS))
    return None


def _folder(find: Callable[[], Path]) -> Folder:
    try:
        path = find()
    except UsageError as error:
        return Folder(None, str(error))
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir():
        return Folder(str(path), f"{existing} is not a directory")
    return Folder(str(path), None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable")


# Another build of llama.cpp


def values_of(variables: Mapping[str, str], names: Iterable[str], between: str = " and ") -> str:
    """The settings of these variables, as a shell has them."""
    return between.join(f"{name}={shlex.quote(variables[name])}" for name in names)


def build_with(*features: str, backends: Iterable[str] | None = None) -> str:
    """The command that builds llama-cpp-python with `features` in addition to `backends` (None: those of this build).

    `features` are RPC, NATIVE or GPU back ends. In the environment that the Makefile of a checkout made, it uses make;
    in an archive, the command is for a clone.
    """
    if backends is None:
        from duo.llama.devices import built_gpu_backends, list_backends  # noqa: PLC0415 - llama.cpp may not be loadable

        backends = [*list_backends(), *built_gpu_backends()]
    folder = Path(duo.__file__).parents[1]
    is_checkout = (folder / "Makefile").is_file() and Path(sys.prefix) == folder / ".venv"
    by_make = is_checkout or is_frozen()  # which adds RPC
    wanted = dict.fromkeys([*(name for name in backends if name in _FLAGS), *features])
    flags = " ".join(f"-D{_FLAGS[name]}=on" for name in wanted if not (by_make and name == RPC))
    flags += "" if by_make else " -DLLAVA_BUILD=off"  # what duo does not load
    build = f'CMAKE_ARGS="{flags}" ' if flags else ""
    if is_frozen():  # nothing in an archive can be rebuilt
        return f"in a clone of duo: make {build}demo"
    if is_checkout:
        make = f"make -C {shlex.quote(str(folder))}"
        return f"{make} clean && {make} {build}demo"
    # pip's cache of wheels ignores CMAKE_ARGS.
    fresh = f"--force-reinstall --no-deps --no-cache-dir --no-binary {LLAMA}"
    return f'{build}{pip_install()} {fresh} "{LLAMA}{tested_range() or ""}"'


def require_rpc() -> None:
    """Raise DeviceError if llama.cpp was built without RPC."""
    from duo.llama.library import supports_rpc  # noqa: PLC0415 - llama.cpp may not be loadable

    if not supports_rpc():
        raise DeviceError(f"llama.cpp was built without RPC; to build it with RPC: {build_with(RPC)}")


def best_backend(host: Host) -> str | None:
    """The backend for the GPU of the machine; None without a GPU."""
    vendors = {gpu.vendor for gpu in host.gpus}
    return next((backend for vendor, backend in _BACKENDS.items() if vendor in vendors), None)
