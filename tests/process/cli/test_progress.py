"""Progress bars: on a terminal only, for what takes longer than two seconds, and nothing of them stays."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from duo.cli.terminal import console
from tests.command import ONE_EACH, Argument, command, duo, models
from tests.process.cli.terminal import Terminal
from tests.process.cli.test_live import HISTORY, Screen, pytestmark

__all__ = ["pytestmark"]

# Seconds before a bar is shown.
SOON, NEVER = (f"from duo.cli.terminal import console; console._DELAY_S = {seconds}\n" for seconds in (0, 1000))
PROMPT = "Once upon a time, there was a cat. " * 10

BARS = (b"preparing the models", b"loading smollm2", b"reading the prompt")


def long_prompt(target: Path, draft: Path) -> list[Argument]:
    text = ("-p", PROMPT, "-n", "4", "--temp", "0", "--color", "never", "--no-profile")
    return [*models(target, draft), *text, *ONE_EACH]


def test_what_is_loaded_and_read_has_a_bar_that_vanishes(demo_pair: tuple[Path, Path]) -> None:
    shown = []
    for before in (SOON, NEVER):
        with Terminal(*long_prompt(*demo_pair), before=before) as terminal:
            assert terminal.finish() == 0
        shown.append([bar in terminal.shown for bar in BARS])
    assert shown == [[True] * 3, [False] * 3]

    kept = []
    for before in (SOON, NEVER):
        with Screen(command(*long_prompt(*demo_pair), before=before), 100, 30) as screen:
            assert screen.finish() == 0
            kept.append(re.sub(r"\d[\d.,]*", "N", screen.shown(*HISTORY)))
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("words", "bar"),
    [
        ("tune -n 8 -p cat", b"the target on "),
        ("check -n 4 -p cat", b"prompt 1 of 1"),
        ("bench -n 4 -r 1 --peers none --modes plain", b"writing texts"),
        ("chat -n 4 -p Hello", b"preparing the models"),
    ],
)
def test_commands_that_take_a_while_have_one(demo_pair: tuple[Path, Path], words: str, bar: bytes) -> None:
    with Terminal(*words.split(), *models(*demo_pair), before=SOON) as terminal:
        terminal.read_until(bar)


@pytest.mark.parametrize(
    ("words", "bar"),
    [
        ("memory build {folder}/a.memory {folder}/text -m {tiny}", b"reading text"),
        ("doctor", b"looking at this machine"),
        ("demo -n 8", b"comparing"),
    ],
)
def test_commands_without_a_pair_have_one_that_vanishes(tiny: Path, tmp_path: Path, words: str, bar: bytes) -> None:
    (tmp_path / "text").write_text("the cat sat on the mat " * 50_000)
    shown = []
    for before in (SOON, NEVER):
        with Terminal(*words.format(folder=tmp_path, tiny=tiny).split(), before=before) as terminal:
            assert terminal.finish() in (0, 1)  # 1: doctor has found problems
        shown.append(bar in terminal.shown)
    assert shown == [True, False]


def test_bench_draws_bars_in_colour_on_a_terminal(tiny: Path) -> None:
    words = ("bench", "-m", tiny, "-n", "4", "-r", "1", "--peers", "none", *ONE_EACH)
    with Terminal(*words) as terminal:
        assert terminal.finish() == 0
    assert re.search(r"    plain +\x1b\[[\d;]*m[█▉▊▋▌▍▎▏]+", terminal.shown.decode())


def test_it_is_not_in_a_pipe(demo_pair: tuple[Path, Path]) -> None:
    run = duo(*long_prompt(*demo_pair), before=SOON, env={"FORCE_COLOR": "1"})
    assert run.status == 0
    assert not any(bar in (run.stderr.encode() + run.stdout) for bar in BARS)


def test_the_bar_of_a_prompt_counts_batches_and_pulses_during_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[tuple[float, float | None]]()
    monkeypatch.setattr(
        console, "progress_bar", lambda: nullcontext(lambda _, done, total: shown.append((done, total)))
    )
    for n_tokens in (5000, 90):
        with console.prompt_bar(n_tokens, 2048) as show:
            for n in range(0, n_tokens, 2048):
                show(n)
    assert shown == [(0, 5000), (2048, 5000), (4096, None), (0, None)]
