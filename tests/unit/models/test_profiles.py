"""Profiles of model pairs: where they are stored, for which key, and that damaged files are ignored."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duo.models.profiles import Key, KeyModel, Profile, _place, profiles_dir

KEY = Key((KeyModel("a.gguf", 7, -1, None, ()),), ("CPU",), 2, ("1", "2", "CPU", ""), (None, 4, (0, 1)))
NEW: Any = {"draft": {"new": 1}}
LEARNED: Any = {"draft": {"bias": {"sync": 0.9}}, "threads": {"concurrent": [1, 1]}}


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A config directory of its own, which does not exist yet."""
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))


def saved() -> Profile:
    Profile(KEY).save(LEARNED)
    return Profile(KEY)


def test_save_change_and_load() -> None:
    assert Profile(KEY).load() == {}
    saved().save(saved().load() | NEW)
    loaded: Any = Profile(KEY).load()
    assert (loaded["draft"], loaded["threads"]) == ({"new": 1}, LEARNED["threads"])
    assert list(profiles_dir().iterdir()) == [Profile(KEY).path], "no temporary file is left"
    other = Profile(msgspec.structs.replace(KEY, cores=3))
    assert other.load() == {}
    Profile(KEY).path.rename(other.path)  # as after a collision of hashes
    assert other.load() == {}


def test_a_damaged_file_is_ignored_and_replaced() -> None:
    path = saved().path
    whole = path.read_bytes()
    deep = whole[:-1] + b', "deep": ' + b"[" * 500 + b"]" * 500 + b"}"
    path.write_bytes(deep)
    saved().save(Profile(KEY).load())  # it is read, and can be written
    large = whole[:-1] + b', "large": "' + b"x" * 2**20 + b'"}'
    others = (b"[" * 100_000, b"9" * 5000, large, b"[]", b'{"for": 7}', b"\xff\xfe")
    for content in (*others, *(whole[:n] for n in range(len(whole)))):
        path.write_bytes(content)
        assert Profile(KEY).load() == {}
    assert saved().load()["draft"] == LEARNED["draft"]
    path.unlink()
    path.mkdir()
    assert Profile(KEY).load() == {}
    with pytest.raises(OSError, match=r"directory|exists"):
        saved()
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


@pytest.mark.timeout(60)
def test_what_is_not_a_regular_file_is_ignored() -> None:
    path = saved().path
    path.unlink()
    os.mkfifo(path)  # nobody writes to it
    assert Profile(KEY).load() == {}
    path.unlink()
    path.symlink_to("/dev/zero")
    assert Profile(KEY).load() == {}
    assert saved().load()["draft"] == LEARNED["draft"]
    assert not path.is_symlink()


@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_the_old_profile_and_no_temporary_file(existed: bool) -> None:
    profile, before = saved() if existed else Profile(KEY), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))  # writes beyond that fail
    try:
        with pytest.raises(OSError, match="File too large"):
            profile.save(NEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert profile.load().get("draft") == (LEARNED["draft"] if existed else None)
    assert list(profiles_dir().iterdir()) == [profile.path] * existed


def test_a_profile_of_an_earlier_release_is_replaced_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """What was measured is not read; the numbers of threads that were tuned are kept."""
    caplog.set_level("INFO", "duo.models")
    threads = {"target": 4, "draft": 1, "concurrent": [3, 1]}
    folder = profiles_dir()
    folder.mkdir(parents=True)
    _, earlier = _place(KEY, 4)
    earlier.write_text(json.dumps({"for": {}, "policy": {"costs": {}}, "threads": threads}))
    assert Profile(KEY).load() == {"for": _place(KEY, 5)[0], "threads": threads}
    assert Profile(KEY).load()["threads"] == threads
    assert [record.getMessage() for record in caplog.records] == [
        f"{earlier.name} is of an earlier release: what it says is measured again"
    ]
    assert list(folder.iterdir()) == [Profile(KEY).path]
