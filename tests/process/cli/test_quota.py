"""A real control group with half a core, above the one that the command is in."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

TELL = """
from duo.engine.cores import usable_cores
from duo.llama.limits import cpu_limit
limit = cpu_limit()
print(limit.value, limit.folder, usable_cores())
"""
_GROUPS = Path("/sys/fs/cgroup")


def _limit(folder: Path) -> None:
    """Half a core. Raises OSError where nobody may make groups, or groups with a quota."""
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_quota_us").write_text("50000")
    else:
        (folder / "cpu.max").write_text("50000 100000")


@pytest.fixture
def group() -> Iterator[Path]:
    """A new group below a new group with a quota, of version 1 or 2; skips where none can be made."""
    for hierarchy in (*_GROUPS.glob("cpu"), _GROUPS):
        outer = hierarchy / f"duo-test-{os.getpid()}"
        try:
            (outer / "inner").mkdir(parents=True)
            _limit(outer)
            yield outer / "inner"
            return
        except OSError:
            continue
        finally:
            for folder in (outer / "inner", outer):
                with suppress(OSError):
                    folder.rmdir()
    pytest.skip("no control group with a quota can be made here")


def test_the_quota_of_a_group_above_is_found(group: Path) -> None:
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", enter, str(group), sys.executable, "-c", TELL]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5", str(group.parent), "1"]
