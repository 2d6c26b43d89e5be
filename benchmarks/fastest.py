"""Whether duo finds the fastest schedule: a first and a fourth run without options, over each schedule forced.

Texts end by themselves, and those that repeat themselves are left out: every kind of speculation is fast on them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import split

from benchmarks.contestants import ALONE, Duo, Setup
from benchmarks.measure import Bar, Comparison, Outcome, note
from duo.bench.contestant import Contestant, Job
from duo.errors import DuoError

FIRST, FOURTH, FORCED = "duo, first run", "duo, fourth run", "forced "
_SCHEDULES = ("off", "sync", "async")
_N_EARLIER = 3  # texts before the fourth run
_DISTINCT = 0.6  # least share of distinct sequences of four words


@dataclass(frozen=True, slots=True)
class _Ending(Duo):
    """duo on a text that may end by itself."""

    def command(self, job: Job) -> list[str]:
        """See Duo."""
        return [word for word in Duo.command(self, job) if word != "--ignore-eos"]


def distinct(text: str) -> float:
    """The share of the sequences of four words that are distinct."""
    words = text.split()
    found = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(set(found)) / len(found) if found else 0.0


def contestants(setup: Setup) -> list[Contestant]:
    """duo without a profile, with one from three other texts, and with each schedule."""
    forced = [_duo(setup, FORCED + name, f"--no-profile --schedule {name}") for name in _SCHEDULES]
    fourth = _duo(setup, FOURTH, "")
    for file in setup.prompt_files[-_N_EARLIER:]:
        job = replace(setup.job, prompt=file.read_text(encoding="utf-8"), prompt_file=setup.folder / file.name)
        job.prompt_file.write_text(job.prompt, encoding="utf-8")
        fourth.writer.write(job, threading.Event())
    return [_duo(setup, FIRST, "--no-profile"), fourth, *forced]


def bars(_: Setup) -> Sequence[Bar]:
    """Over the best schedule, which is chosen on the same rounds."""
    return [Bar(FIRST, FORCED, 0.93), Bar(FOURTH, FORCED, 0.97)]


class Fastest(Comparison):
    """Prompts whose texts do not repeat themselves, at most eight of them."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        alone, files = _duo(setup, "", "--schedule off --no-profile"), []
        for file in setup.prompt_files:
            job = replace(setup.job, prompt=file.read_text(encoding="utf-8"), prompt_file=setup.folder / file.name)
            job.prompt_file.write_text(job.prompt, encoding="utf-8")
            try:
                run = alone.writer.write(job, threading.Event())
            except DuoError as error:  # the text is too short
                note(f"{file.stem}: {error}")
                continue
            share = distinct(run.text)
            note(f"{file.stem}: {100 * share:.0f} % distinct, {run.tokens} tokens")
            if share >= _DISTINCT and (run.tokens or 0) >= setup.n_tokens / 2:
                files.append(file)
        return Comparison.run(self, replace(setup, prompt_files=files[: 8 + _N_EARLIER]))


def _duo(setup: Setup, name: str, options: str) -> Contestant:
    words = split(f"-md {{draft}} {ALONE} {options}")
    return Contestant(name, _Ending(name, words, setup.duo, setup.config(name)))
