"""What `python -m build` makes: a wheel that works where there is no checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from duo import __version__
from tests.command import ROOT, Argument, environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built like a release, from the source distribution; with the build tools of the tests' environment."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A .pth file in the folder that it names is not read, so the checkout is not found through it.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def _run(*command: Argument, folder: Path) -> str:
    """What it writes to stdout, run in `folder` and with nothing of the checkout to import."""
    inherited = environment()
    del inherited["PYTHONPATH"]
    done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_duo_and_nothing_else(wheel: Path) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "duo").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert "duo/bench/prompts.txt" in packed


def test_the_command_works_anywhere(installed: Path, tmp_path: Path) -> None:
    assert _run(installed / "duo", "--version", folder=tmp_path).startswith(f"duo {__version__}\n")
    where = "import duo; print(duo.__file__)"
    assert Path(_run(installed / "python", "-c", where, folder=tmp_path)).is_relative_to(installed.parent)


def test_the_page_is_installed(installed: Path, tmp_path: Path) -> None:
    code = "from duo.server.page import Page; print(*Page().paths)"
    paths = _run(installed / "python", "-c", code, folder=tmp_path).split()
    assert {"/", "/page/style.css", "/page/app.js"} <= set(paths)


def test_the_built_in_prompts_are_installed(installed: Path, tmp_path: Path) -> None:
    code = "from duo.bench.prompts import built_in; print(len(built_in()))"
    assert int(_run(installed / "python", "-c", code, folder=tmp_path)) > 0
