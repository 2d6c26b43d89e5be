"""`duo tune --list` and `--reset`: what was learned, by names that can be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duo.models.profiles import Key, Profile
from duo.spec.policy import Policy
from tests.command import Run, assert_refused
from tests.unit.cli.runner import duo

Save = Callable[..., Profile]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Keeps the profile of models of these names, in a config directory of its own."""
    monkeypatch.setenv("DUO_CONFIG", str(tmp_path / "config"))

    def save(*names: str, when: int = 0, options: tuple[object, ...] = (None, None), **more: Any) -> Profile:
        model: dict[str, object] = {"gpu_layers": -1, "devices": None, "servers": []}
        key: Any = {
            "models": [
                model | {"path": f"/models/{name}", "bytes": 4_700_000_000 // 10**i} for i, name in enumerate(names)
            ],
            "devices": ["AMD EPYC"],
            "cores": 2,
            "llama": ["0.3.36", "b1", "CPU", "AVX = 1"],
            "options": list(options),
        }
        profile = Profile(msgspec.convert(key, Key))
        document: Any = {"policy": _learned().state(), **more}
        profile.save(document)
        os.utime(profile.path, (when, when))
        return profile

    return save


def _learned() -> Policy:
    """T(1) = 100 ms, T(5) = 110 ms, 10 ms for a token of the draft, of which 80 % are accepted."""
    policy = Policy(4, 8)
    policy.begin(0, mode="greedy")
    for n, seconds in ((1, 0.1), (5, 0.11)):
        for _ in range(6):
            policy.alone.add_target(n, seconds)
    policy.alone.add_draft(0.01, 1)
    policy.concurrent.add_draft(0.012)
    policy.learn_scores([(3.0, i % 5 != 0) for i in range(200)])
    policy.use_cores(1)
    policy.alone.add_target(1, 0.15)
    policy.use_cores(0)
    return policy


def tune(*arguments: str | Path) -> Run:
    return duo("tune", *arguments, env={"DUO_CONFIG": os.environ["DUO_CONFIG"], "TZ": "UTC"})


def test_the_list(save: Save) -> None:
    pair = save("large.gguf", "small.gguf", when=86_400)
    alone = save("large.gguf", when=0, options=(4, None))
    tuned = save("large.gguf", "tiny.gguf", when=2 * 86_400, threads={"target": 2, "draft": 1, "concurrent": [1, 1]})
    run = tune("--list")
    assert (run.status, run.stderr) == (0, "")
    head, *rows, empty, where = [" ".join(line.split()) for line in run.text.splitlines()]
    assert head == "changed size on threads ms/token draft accepted fastest profile"
    assert rows == [
        f"1970-01-03 00:00 4.7 GB + 470 MB CPU tuned 2/1 1+1 100.0 10.0 80 % sync {tuned.path.stem}",
        f"1970-01-02 00:00 4.7 GB + 470 MB CPU auto 100.0 10.0 80 % sync {pair.path.stem}",
        f"1970-01-01 00:00 4.7 GB CPU -t 4 100.0 10.0 80 % - {alone.path.stem}",
    ]
    assert (empty, where) == ("", f"ms/token of the target and of the draft; in {pair.path.parent}")


def test_one_profile_in_full(save: Save) -> None:
    save("large.gguf", "small.gguf")
    save("other.gguf", "small.gguf")
    run = tune("--list", "large")
    assert (run.status, run.stderr) == (0, "")
    for line in (
        "model     /models/large.gguf, 4.7 GB, CPU",
        "model     /models/small.gguf, 470 MB, CPU",
        "machine   AMD EPYC; 2 cores",
        "threads   auto",
        "times     T(1) = 100.0, T(5) = 110.0 ms alone",
        "times     T(1) = 150.0 ms alone, 1 of the cores free",
        "draft     10.0",
        "accepted  80 %",
    ):
        assert line in run.text.splitlines()
    assert "other" not in run.text


def test_reset_forgets_one_or_all(save: Save) -> None:
    first, second, third = (save(f"{name}.gguf", "small.gguf") for name in ("one", "two", "three"))
    target = save("one.gguf")
    run = tune("--reset", first.path.name, second.path.name)
    assert run.stderr.splitlines() == [f"duo: removed {each.path.stem}" for each in (first, target, second)]
    assert [each.path.exists() for each in (first, target, second, third)] == [False, False, False, True]
    assert tune("--reset", "all").status == 0
    assert tune("--list").text.startswith("no profiles in ")


def test_what_is_refused(save: Save) -> None:
    names = [save(f"{name}.gguf", "small.gguf").path for name in ("large", "larger")]
    for arguments, said in (
        (("--reset", "large"), f"'large' is in several names of a profile; there is: {names[0].stem}, {names[1].stem}"),
        (("--list", "lager"), f"'lager' is no name of a profile; there is: {names[1].stem}, {names[0].stem}"),
    ):
        assert_refused(tune(*arguments), said, status=2)
    assert all(path.exists() for path in names)
