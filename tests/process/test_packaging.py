"""What `python -m build` makes: a wheel that works where there is no checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from duo import __version__
from tests.command import ROOT, Argument, environment


def run(folder: Path, *command: Argument) -> str:
    """What it writes to stdout, run in `folder` and with nothing of the checkout to import."""
    inherited = environment()
    del inherited["PYTHONPATH"]
    done = subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_all_that_it_needs_and_works_anywhere(tmp_path: Path) -> None:
    """Built like a release, from the source distribution, with the tools and the dependencies of the tests."""
    dist, installed = tmp_path / "dist", tmp_path / "installed"
    run(tmp_path, sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "duo").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in files if "__pycache__" not in name}

    venv.create(installed)
    python = installed / "bin" / "python"
    run(tmp_path, sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = installed.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run(tmp_path, installed / "bin" / "duo", "--version").startswith(f"duo {__version__}\n")
    code = (
        "import duo; from duo.server.page import Page; from duo.bench.prompts import built_in\n"
        "print(duo.__file__, len(built_in()), *Page().paths)"
    )
    where, n_prompts, *paths = run(tmp_path, python, "-c", code).split()
    assert Path(where).is_relative_to(installed)
    assert int(n_prompts) > 0
    assert {"/", "/page/style.css", "/page/app.js"} <= set(paths)
