"""How duo is set up: llama.cpp's build options, and what is said while llama.cpp is compiled."""

import os
import pty
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.command import ROOT, Run, run

SETUP = ROOT / "setup"
OPTIONS = f"-DCMAKE_PROJECT_INCLUDE={SETUP / 'llama.cmake'}"

# The options


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("variable", "words"), [("", ["CMAKE_ARGS=-DGGML_RPC=off"]), ("-DGGML_RPC=off", [])])
def test_options_of_the_user_come_last(variable: str, words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "CMAKE_ARGS"}}
    command = ["make", "--silent", "--eval", 'show:; echo "$$CMAKE_ARGS"', *words, "show"]
    environment |= {"CMAKE_ARGS": variable} if variable else {}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert shlex.split(shown) == [OPTIONS, "-DGGML_RPC=off"]


# The environment

OLD = """#!/bin/sh
exec {} -c 'import sys; sys.version_info = (3, 9); exec(sys.argv[2])' "$@"
"""


@pytest.fixture
def make_venv(tmp_path: Path) -> Callable[..., Run]:
    """Does what make does first: an environment in venv/, made by the program python."""

    def make_venv(python: str | Path = sys.executable) -> Run:
        rule = "only:; @$(call MAKE_VENV,$(VENV))"
        return run("make", "--silent", "-C", ROOT, "--eval", rule, f"VENV={tmp_path}/venv", f"PYTHON={python}", "only")

    return make_venv


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_an_environment_without_pip_or_with_an_old_python_is_made_anew(
    tmp_path: Path, make_venv: Callable[..., Run]
) -> None:
    folder = tmp_path / "venv"
    python = folder / "bin" / "python"
    venv.create(folder)
    old = tmp_path / "old"
    old.write_text(OLD.format(sys.executable))
    old.chmod(0o755)
    assert run(python, "-m", "pip", "--version").status == 1
    for missing in ("no-such-python", "false", old):
        refused = make_venv(missing)
        assert refused.status == 2
        assert refused.text.startswith(f"{missing} is not Python 3.10 or later with venv")
        assert refused.text.count("\n") == 1
    assert make_venv().status == 0
    assert run(python, "-m", "pip", "--version").status == 0
    assert make_venv("false").status == 0  # it is kept
    python.unlink()
    shutil.copy(old, python)
    assert make_venv("false").status == 2
    assert make_venv().status == 0
    assert run(python, "-m", "pip", "--version").status == 0


# What llama-cpp-python and llama.cpp do with these options, without a file to compile.
OUTER = """
cmake_minimum_required(VERSION 3.21)
project(llama_cpp)
option(LLAVA_BUILD "" ON)
set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)
add_subdirectory(nested)
"""
NESTED = """
cmake_minimum_required(VERSION 3.14...3.28)
project("llama.cpp" C CXX)
option(LLAMA_BUILD_COMMON "" OFF)
option(GGML_RPC "" OFF)
message("rpc ${GGML_RPC} multimodal ${LLAVA_BUILD} common ${LLAMA_BUILD_COMMON}")
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
@pytest.mark.parametrize(
    ("options", "built"),
    [
        ((), "rpc OFF multimodal ON common ON"),  # llama-cpp-python's own
        ((OPTIONS,), "rpc ON multimodal OFF common OFF"),
        ((OPTIONS, "-DGGML_RPC=off", "-DLLAVA_BUILD=on"), "rpc off multimodal on common ON"),
    ],
)
def test_what_is_built(tmp_path: Path, options: tuple[str, ...], built: str) -> None:
    (tmp_path / "nested").mkdir()
    (tmp_path / "CMakeLists.txt").write_text(OUTER)
    (tmp_path / "nested" / "CMakeLists.txt").write_text(NESTED)
    done = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", *options)
    assert done.status == 0, done.stderr
    assert built in done.stderr.splitlines()


# The progress: install.py with a program instead of pip

FAILED = "ninja: build stopped: subcommand failed."


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs install.py in an environment of its own; `code` is the program, `interval_s` at most between two lines."""
    environment = tmp_path / "environment"
    venv.create(environment)

    def run_install(code: str, *, is_terminal: bool = False) -> tuple[int, str]:
        (tmp_path / "pip.py").write_text(f"import sys, time\n{code}")
        program = "import sys, install; install.INTERVAL_S = 0.05; sys.exit(install.main())"
        master, terminal = pty.openpty() if is_terminal else os.pipe()
        process = subprocess.Popen(
            [environment / "bin" / "python", "-c", program, "duo"],
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{SETUP}"},
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        shown = b""
        while data := _read(master):
            shown += data
            if b" left" in shown:
                (tmp_path / "seen").touch()
        os.close(master)
        return process.wait(), shown.decode()

    return run_install


def _read(file: int) -> bytes:
    try:
        return os.read(file, 1 << 16)
    except OSError:  # how Linux says that the other end of a terminal is closed
        return b""


# Prints, as pip does, what Ninja or make print, and waits until it was seen.
COMPILE = """
import pathlib
print("Collecting duo\\n  [1/4] Building\\n  [{step}] Building", flush=True)
while not (pathlib.Path(__file__).parent / "seen").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("step", ["2/4", " 50%"])
def test_it_says_how_much_is_compiled(install: Callable[..., tuple[int, str]], step: str, is_terminal: bool) -> None:
    status, shown = install(COMPILE.replace("{step}", step), is_terminal=is_terminal)
    assert status == 0
    lines = shown.split("\r\033[K") if is_terminal else shown.splitlines()
    assert "compiling llama.cpp: 50%, about 10 s left" in lines
    assert "Building" not in shown
    assert not is_terminal or lines[-1] == ""


def test_a_failure_keeps_its_status_and_says_why(tmp_path: Path, install: Callable[..., tuple[int, str]]) -> None:
    status, shown = install(f"print(*range(100), {FAILED!r}, sep='\\n')\nsys.exit(3)")
    assert status == 3
    log = tmp_path / "environment" / "install.log"
    assert shown.endswith(f"98\n99\n{FAILED}\nall that pip printed: {log}\n")
    assert "\n50\n" not in shown
    assert log.read_text().splitlines()[50] == "50"


def test_the_time_that_is_left() -> None:
    spec = spec_from_file_location("install", SETUP / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    progress = module.Progress()
    assert progress.text(7) == "installing: 7 s"
    progress.read("  -- Configuring done", 8)
    progress.read("  [0/80] Building C object a.o", 10)
    assert progress.text(12) == "compiling llama.cpp: 0%"
    progress.read("  [20/80] Building C object b.o", 70)
    assert progress.text(70) == "compiling llama.cpp: 25%, about 3 min left"
    progress.read("  [60/80] Building C object c.o", 190)
    progress.read("  [2/2] Linking a program that Vulkan's kernels are compiled with", 190)
    assert progress.text(190) == "compiling llama.cpp: 75%, about 60 s left"
    progress.read("  [80/80] Linking", 250)
    assert progress.text(255) == "installing: 255 s"
