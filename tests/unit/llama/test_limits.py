"""Limits of control groups, in made-up trees of files; a real group: tests/process/engine/test_quota.py."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from duo.llama.limits import Limit, cpu_limit, memory_left, memory_limit

V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "34 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
)
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def tree(root: Path, groups: str, mounts: str, files: Mapping[str, object]) -> Path:
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def quota(root: Path) -> tuple[float, str] | None:
    limit = cpu_limit(root)
    return (limit.value, str(Path(limit.folder).relative_to(root))) if limit else None


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        # systemd's CPUQuota=150% of a slice, above a service without one
        ("0::/a.slice/b.service", V2_MOUNT, {"a.slice/b.service/cpu.max": "max 100000",
         "a.slice/cpu.max": "150000 100000"}, (1.5, "sys/fs/cgroup/a.slice")),
        ("0::/a.slice/b.service", V2_MOUNT, {"a.slice/b.service/cpu.max": "50000 100000",
         "a.slice/cpu.max": "150000 100000"}, (0.5, "sys/fs/cgroup/a.slice/b.service")),
        ("0::/", V2_MOUNT, {"cpu.max": "250000 100000"}, (2.5, "sys/fs/cgroup")),  # a container's own namespace
        ("0::/", V2_MOUNT, {"other/cpu.max": "50000 100000"}, None),
        ("0::/../x", V2_MOUNT, {"cpu.max": "250000 100000"}, (2.5, "sys/fs/cgroup")),  # outside of the namespace
        ("0::/kube/pod", V2_MOUNT.replace(" / /sys", " /kube /sys"), {"pod/cpu.max": "5000 10000"},
         (0.5, "sys/fs/cgroup/pod")),
        ("0::/kube", V2_MOUNT.replace(" / /sys", " /elsewhere /sys"), {"cpu.max": "5000 10000"},
         (0.5, "sys/fs/cgroup")),
        ("0::/a:b c", V2_MOUNT.replace("/sys/fs/cgroup", r"/my\040groups"), {"../../../my groups/a:b c/cpu.max": "1 2"},
         (0.5, "my groups/a:b c")),
        ("0::/", V2_MOUNT, {"cpu.max": "nothing"}, None),
        ("0::/", V2_MOUNT, {"cpu.max": "1 0"}, None),
        # Version 1, alone and in hybrid systems
        ("4:cpu,cpuacct:/a/b\n2:memory:/a\n0::/x", V1_MOUNTS, {"cpu,cpuacct/a/cpu.cfs_quota_us": 50000,
         "cpu,cpuacct/a/cpu.cfs_period_us": 100000, "cpu,cpuacct/a/b/cpu.cfs_quota_us": -1,
         "cpu,cpuacct/a/b/cpu.cfs_period_us": 100000}, (0.5, "sys/fs/cgroup/cpu,cpuacct/a")),
        ("4:cpu,cpuacct:/docker/1", V1_MOUNTS.replace("0:29 /", "0:29 /docker/1"),
         {"cpu,cpuacct/cpu.cfs_quota_us": 150000, "cpu,cpuacct/cpu.cfs_period_us": 100000},
         (1.5, "sys/fs/cgroup/cpu,cpuacct")),
        ("3:cpuset:/a\n0::/a", V1_MOUNTS, {"unified/a/cpu.max": "20000 10000"}, (2.0, "sys/fs/cgroup/unified/a")),
        ("", V2_MOUNT, {"cpu.max": "1 2"}, None),
        ("0::/", "", {"cpu.max": "1 2"}, None),
    ],
)  # fmt: skip
def test_the_least_quota_of_all_levels(
    tmp_path: Path, groups: str, mounts: str, files: Mapping[str, object], expected: object
) -> None:
    files = {os.path.normpath(f"sys/fs/cgroup/{name}"): text for name, text in files.items()}
    assert quota(tree(tmp_path, groups, mounts, files)) == expected


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path) is memory_limit(tmp_path) is memory_left(tmp_path) is None


@pytest.mark.parametrize(
    ("groups", "mounts", "at", "limits", "names"),
    [
        ("0::/a/b", V2_MOUNT, "", ("memory.max", "max"), ("memory.current", "")),
        ("2:memory:/a/b", V1_MOUNTS, "memory/", ("memory.limit_in_bytes", 2**63 - 4096),
         ("memory.usage_in_bytes", "total_")),
    ],
)  # fmt: skip
def test_memory_is_what_the_fullest_level_has_left(
    tmp_path: Path, groups: str, mounts: str, at: str, limits: tuple[str, object], names: tuple[str, str]
) -> None:
    """The group's own limit is lower than that of the group above, where siblings have used more."""
    files: dict[str, object] = {}
    for folder, most, used in (("a/b", 4000, 1000), ("a", 5000, 4500)):
        stat = f"{names[1]}active_file 100\n{names[1]}inactive_file 200\nanon 7"
        values = {limits[0]: most, "memory.high": "max", names[0]: used, "memory.stat": stat}
        files |= {f"sys/fs/cgroup/{at}{folder}/{name}": value for name, value in values.items()}
    root = tree(tmp_path, groups, mounts, files)
    assert memory_limit(root) == Limit(4000, str(root / "sys/fs/cgroup" / at / "a/b"))
    assert memory_left(root) == Limit(800, str(root / "sys/fs/cgroup" / at / "a"))
    for folder in ("a", "a/b"):
        (root / "sys/fs/cgroup" / at / folder / limits[0]).write_text(f"{limits[1]}\n")
    assert memory_limit(root) is memory_left(root) is None
    if not at:
        (root / "sys/fs/cgroup/a/memory.high").write_text("4700\n")  # above it, systemd's MemoryHigh slows down
        assert memory_left(root) == Limit(500, str(root / "sys/fs/cgroup/a"))
