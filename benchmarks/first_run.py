"""Contestants and bars of the promise never to be slower: a first run, later runs, and every schedule forced."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from benchmarks.contestants import ALONE as WITHOUT_LOOKUP
from benchmarks.contestants import Setup, duo
from benchmarks.measure import Bar
from duo.bench.contestant import Contestant

COLD, WARM, FORCED = "duo, first run", "duo, later runs", "forced "
_SCHEDULES = ("off", "sync", "async")
_N_EARLIER = 2  # runs before the later ones
ALONE, WITH_DRAFT = "target alone", "with a draft"


def contestants(setup: Setup) -> list[Contestant]:
    """duo without a profile, with one from two other texts, and with each schedule."""
    warm = taught(setup, duo(setup, WARM, "-md {draft}"))
    forced = [duo(setup, FORCED + name, f"-md {{draft}} --no-profile --schedule {name}") for name in _SCHEDULES]
    return [duo(setup, COLD, "-md {draft} --no-profile"), warm, *forced]


def taught(setup: Setup, contestant: Contestant) -> Contestant:
    """The contestant, after it has generated the texts of the last prompts."""
    for file in setup.prompt_files[-_N_EARLIER:]:
        job = replace(setup.job, prompt=file.read_text(encoding="utf-8"), prompt_file=setup.folder / file.name)
        job.prompt_file.write_text(job.prompt, encoding="utf-8")
        contestant.writer.write(job, threading.Event())
    return contestant


def bars(setup: Setup) -> Sequence[Bar]:
    """Over the target alone, over the best schedule, and over the best of llama.cpp's programs."""
    over_off = (
        [Bar(COLD, FORCED + "off", 0.97), Bar(WARM, FORCED + "off", 0.985)] if setup.pair == "smollm2-f16" else []
    )
    return [
        *over_off,
        Bar(COLD, FORCED, 0.96),
        Bar(WARM, FORCED, 0.98),
        Bar(COLD, "llama-", 1.03),
        Bar(WARM, "llama-", 1.10),
    ]


def first_token(setup: Setup) -> list[Contestant]:
    """With a draft and without, on a first run."""
    return [duo(setup, ALONE, WITHOUT_LOOKUP), duo(setup, WITH_DRAFT, "-md {draft} --no-profile")]


def first_token_bars(_: Setup) -> Sequence[Bar]:
    """The time to the first token with a draft over the time without."""
    figure = attrgetter("first_token_s")
    return [Bar(WITH_DRAFT, ALONE, most=1.05, figure=figure, what="time to the first token")]
