"""Whether duo finds the fastest schedule: over each schedule forced, over llama.cpp's programs, and beside busy loops.

Texts end by themselves, and those that repeat themselves are left out: every kind of speculation is fast on them. Last,
whether the gains that duo states are true.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import split

from benchmarks.contestants import ALONE, Duo, DuoRun, Setup, ngrams, plain_program, speculative
from benchmarks.measure import Bar, Comparison, Outcome, Verdict, note
from duo.bench.contestant import Contestant, Job
from duo.bench.results import Results
from duo.bench.statistics import Range
from duo.errors import DuoError

FIRST, FOURTH, FORCED, PAIR, TARGET = "duo, first run", "duo, fourth run", "forced ", "duo", "duo without a draft"
_SCHEDULES = ("off", "sync", "async")
_PEER = "llama-"
_METHODS = ("ngram-mod n=3, m=8", "ngram-map-k n=3, m=8", "ngram-simple n=3, m=8")  # of those without a draft model
_LOOP = "while True: pass"
_TRUE = 0.15  # relative error of a stated gain
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
    forced = [_duo(setup, FORCED + name, f"{ALONE} --no-profile --schedule {name}") for name in _SCHEDULES]
    return [*_runs(setup, ALONE), *forced]


def over_peers(setup: Setup) -> list[Contestant]:
    """duo, which also looks up candidates, and llama.cpp's programs with each of many settings."""
    methods = [each for each in ngrams(setup) if each.name.endswith(_METHODS)]
    plain = [plain_program(setup, "llama-completion", threads) for threads in (1, 2)]
    return [*_runs(setup, ""), *plain, *speculative(setup, threads=("2",)), *methods]


def beside_loops(setup: Setup) -> list[Contestant]:
    """duo without options, with and without the draft, and with fixed numbers of threads."""
    alone = [Contestant(name, Duo(name, split(f"{ALONE} --no-profile {options}"), setup.duo, setup.config(name)))
             for name, options in ((TARGET, ""), (f"{FORCED}-t 1", "-t 1"), (f"{FORCED}-t 2", "-t 2"))]  # fmt: skip
    pair = {PAIR: "", f"{FORCED}async": "--schedule async"}
    return [*alone, *(_duo(setup, name, f"{ALONE} --no-profile {options}") for name, options in pair.items())]


def stating(setup: Setup) -> list[Contestant]:
    """duo with one profile for all texts, and the target alone."""
    return [_duo(setup, PAIR, f"{ALONE} -v"), _duo(setup, FORCED + "off", f"{ALONE} --no-profile --schedule off")]


def _runs(setup: Setup, options: str) -> list[Contestant]:
    """A first and a fourth run."""
    fourth = _duo(setup, FOURTH, options)
    for file in setup.prompt_files[-_N_EARLIER:]:
        job = replace(setup.job, prompt=file.read_text(encoding="utf-8"), prompt_file=setup.folder / file.name)
        job.prompt_file.write_text(job.prompt, encoding="utf-8")
        fourth.writer.write(job, threading.Event())
    return [_duo(setup, FIRST, f"{options} --no-profile"), fourth]


def bars(_: Setup) -> Sequence[Bar]:
    """Over the best schedule, which is chosen on the same rounds."""
    return [Bar(FIRST, FORCED, 0.93), Bar(FOURTH, FORCED, 0.97)]


def peer_bars(_: Setup) -> Sequence[Bar]:
    """Over the best single setting of all of llama.cpp's programs."""
    return [Bar(FIRST, _PEER, 1.0), Bar(FOURTH, _PEER, 1.08)]


def busy_bars(_: Setup) -> Sequence[Bar]:
    """Over the best fixed setting under the same load."""
    return [Bar(TARGET, f"{FORCED}-t", 0.85), Bar(PAIR, FORCED, 0.85)]


class Fastest(Comparison):
    """Prompts whose texts do not repeat themselves, at most eight of them."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        alone, files = _duo(setup, "", f"{ALONE} --schedule off --no-profile"), []
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


@dataclass(frozen=True, slots=True)
class Busy(Comparison):
    """Beside `n_loops` programs that compute all the time."""

    n_loops: int = 0

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        for _ in range(self.n_loops):
            setup.stack.callback(subprocess.Popen([sys.executable, "-c", _LOOP]).kill)
        return Comparison.run(self, setup)


class Verdicts(Comparison):
    """The gains that duo states at the end of a run, over the ratio of the rates of that run and the target alone."""

    def measure(self, setup: Setup) -> tuple[Results, bool]:
        """See Comparison. Prints a line for each run."""
        results, complete = Comparison.measure(self, setup)
        for stated, real in self.gains(results):
            note(f"stated {stated or 'nothing'}, in truth {real:.2f}")
        return results, complete

    @staticmethod
    def gains(results: Results) -> list[tuple[float | None, float]]:
        """Of each run, the gain that it states and the real one."""
        duo, alone = ([sample.run for sample in results.counting(each)] for each in results.contestants)
        return [
            (each.stated_gain if isinstance(each, DuoRun) else None, each.tokens_per_s / other.tokens_per_s)
            for each, other in zip(duo, alone, strict=True)
        ]

    def verdicts(self, _: Setup, results: Results) -> Sequence[Verdict]:
        """How many gains are stated, and how many of these are true."""
        found = self.gains(results)
        stated = [(gain, real) for gain, real in found if gain is not None]
        right = sum(abs(gain / real - 1) <= _TRUE for gain, real in stated)
        return [
            Verdict("share of the runs that state a gain", Range(len(stated) / len(found), None, None), 0.8),
            Verdict("share of the stated gains within 15 %", Range(right / max(1, len(stated)), None, None), 1.0),
        ]


def _duo(setup: Setup, name: str, options: str) -> Contestant:
    words = split(f"-md {{draft}} {options}")
    return Contestant(name, _Ending(name, words, setup.duo, setup.config(name)))
