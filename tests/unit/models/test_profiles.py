"""What is kept of a pair of models: where, for whom, and that nothing damaged is ever believed."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from duo.errors import UsageError
from duo.models.profiles import Profile, config_dir

KEY = {"models": [{"name": "a.gguf", "bytes": 7}], "cores": 2}
LEARNED = {"policy": {"draft_s": {"1": 0.025}}, "threads": {"beside": [1, 1]}}


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An own config directory, which is not there yet."""
    for name in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


# Where


def test_duo_config_comes_first(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    assert config_dir() == config
    assert Profile(KEY).path.parent == config / "profiles"


def test_then_the_xdg_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUO_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
    assert config_dir() == Path("/elsewhere/duo")


@pytest.mark.parametrize("shared", [None, "", "relative"])
@pytest.mark.parametrize("own", [None, ""])
def test_then_the_usual_place(monkeypatch: pytest.MonkeyPatch, shared: str | None, own: str | None) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for name, value in (("DUO_CONFIG", own), ("XDG_CONFIG_HOME", shared)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert config_dir() == Path("/home/ada/.config/duo")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert config_dir() == Path("/home/ada/Library/Application Support/duo")


def test_a_relative_duo_config_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUO_CONFIG", "relative")
    with pytest.raises(UsageError, match="DUO_CONFIG must be an absolute path, not relative"):
        Profile(KEY)


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DUO_CONFIG")
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(UsageError, match="set DUO_CONFIG or profile=False"):
        config_dir()


# What


def test_what_is_saved_is_loaded() -> None:
    assert Profile(KEY).load() == {}
    Profile(KEY).save(LEARNED)
    loaded = Profile(KEY).load()
    assert {name: loaded[name] for name in LEARNED} == LEARNED
    Profile(KEY).save({"policy": {}})
    assert Profile(KEY).load()["policy"] == {}
    assert "threads" not in Profile(KEY).load()


def test_what_was_loaded_can_be_saved_again() -> None:
    Profile(KEY).save(LEARNED)
    Profile(KEY).save(Profile(KEY).load() | {"policy": {"new": 1}})
    loaded = Profile(KEY).load()
    assert (loaded["policy"], loaded["threads"]) == ({"new": 1}, LEARNED["threads"])


@pytest.mark.parametrize(
    "other", [{**KEY, "cores": 3}, {"models": [{"name": "a.gguf", "bytes": 8}], "cores": 2}, {**KEY, "new": None}, {}]
)
def test_another_pair_or_machine_has_another_profile(other: dict[str, Any]) -> None:
    Profile(KEY).save(LEARNED)
    assert Profile(other).load() == {}
    Profile(other).save({"policy": {}})
    assert Profile(KEY).load()["policy"] == LEARNED["policy"]


def test_the_order_of_a_key_does_not_matter() -> None:
    Profile(KEY).save(LEARNED)
    assert Profile(dict(reversed(KEY.items()))).load()["policy"] == LEARNED["policy"]


def test_a_file_under_the_name_of_another_is_not_believed() -> None:
    """As after a collision of names, or by hand."""
    Profile({"cores": 1}).save(LEARNED)
    Profile({"cores": 1}).path.rename(Profile(KEY).path)
    assert Profile(KEY).load() == {}


def test_a_profile_of_another_version_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    Profile(KEY).save(LEARNED)
    monkeypatch.setattr("duo.models.profiles._VERSION", 999)
    assert Profile(KEY).load() == {}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"{}", b'{"for": 7}', b"\xff\xfe", b"\0" * 99]
)
def test_a_damaged_file_counts_as_none(content: bytes) -> None:
    path = Profile(KEY).path
    Profile(KEY).save(LEARNED)
    path.write_bytes(content)
    assert Profile(KEY).load() == {}
    Profile(KEY).save(LEARNED)
    assert Profile(KEY).load()["policy"] == LEARNED["policy"]


def test_every_truncated_file_counts_as_none() -> None:
    path = Profile(KEY).path
    Profile(KEY).save(LEARNED)
    whole = path.read_bytes().rstrip()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        assert Profile(KEY).load() == {}


def test_a_directory_in_its_place_counts_as_none() -> None:
    Profile(KEY).path.mkdir(parents=True)
    assert Profile(KEY).load() == {}


# Whole or not at all


def test_nothing_but_the_profile_is_left(config: Path) -> None:
    for n in range(3):
        Profile(KEY).save({"policy": {"n": n}})
    assert list((config / "profiles").iterdir()) == [Profile(KEY).path]


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """What is written beyond fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("existed", [True, False])
def test_a_disk_that_is_full_leaves_the_old_profile_and_no_part(config: Path, existed: bool) -> None:
    profile = Profile(KEY)
    if existed:
        profile.save(LEARNED)
    with files_of_at_most(50), pytest.raises(OSError, match="File too large"):
        profile.save({"policy": {"new": 1}})
    assert profile.load().get("policy") == (LEARNED["policy"] if existed else None)
    assert list((config / "profiles").iterdir()) == [profile.path] * existed


def test_a_profile_that_cannot_be_put_in_its_place_leaves_no_part(config: Path) -> None:
    profile = Profile(KEY)
    profile.path.mkdir(parents=True)
    with pytest.raises(OSError, match=r"directory|exists"):
        profile.save(LEARNED)
    assert list((config / "profiles").iterdir()) == [profile.path]


def test_the_old_profile_is_there_until_the_new_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(KEY)
    profile.save(LEARNED)
    seen: list[Any] = []
    replace = Path.replace

    def look(part: Path, target: Path) -> Path:
        seen.append(json.loads(target.read_text())["policy"])
        seen.append(json.loads(part.read_text())["policy"])
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", look)
    profile.save({"policy": {"new": 1}})
    assert seen == [LEARNED["policy"], {"new": 1}]
    assert profile.load()["policy"] == {"new": 1}


@pytest.mark.parametrize("blocked", ["config", "config/profiles"])
def test_a_directory_that_cannot_be_made_is_an_os_error(tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("a file")
    with pytest.raises(OSError, match=r"directory|exists"):
        Profile(KEY).save(LEARNED)
    assert Profile(KEY).load() == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_not_ours_is_an_os_error(config: Path) -> None:
    Profile(KEY).save(LEARNED)
    (config / "profiles").chmod(0o500)
    with pytest.raises(PermissionError):
        Profile(KEY).save({})
    assert Profile(KEY).load()["policy"] == LEARNED["policy"]
