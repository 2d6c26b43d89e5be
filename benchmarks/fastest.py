"""Whether duo finds the fastest schedule: over each schedule forced, over llama.cpp's programs, and beside busy loops.

Texts end by themselves, and those that repeat themselves are left out: every kind of speculation is fast on them. Last,
whether the gains that duo states are true.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from benchmarks.contestants import ALONE, Setup, commands, duo, ngrams, plain_program, speculative
from benchmarks.process import Child
from benchmarks.runner import Bar, Comparison, Outcome, Verdict, note, verdict
from duo.bench.results import Results
from duo.bench.rounds import Contestant
from duo.errors import DuoError

FIRST, FOURTH, FORCED, PAIR, TARGET = "duo, first run", "duo, fourth run", "forced ", "duo", "duo without a draft"
_SCHEDULES = ("off", "sync", "async")
_LOOP = "while True: pass"
_TRUE = 0.15  # relative error of a stated gain
_N_EARLIER = 3  # texts before the fourth run
_DISTINCT = 0.6  # least share of distinct sequences of four words
_MD = "-md {draft}"

# Over the best schedule, which is chosen on the same rounds; over the best single setting of all of llama.cpp's
# programs; and over the best fixed setting under the same load.
BARS = (Bar(FIRST, FORCED, 0.93), Bar(FOURTH, FORCED, 0.97))
PEER_BARS = (Bar(FIRST, "llama-", 1.0), Bar(FOURTH, "llama-", 1.08))
BUSY_BARS = (Bar(TARGET, f"{FORCED}-t", 0.85), Bar(PAIR, FORCED, 0.85))


def distinct(text: str) -> float:
    """The share of the sequences of four words that are distinct."""
    words = text.split()
    found = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(set(found)) / len(found) if found else 0.0


def contestants(setup: Setup) -> list[Contestant]:
    """duo without a profile, with one from three other texts, and with each schedule."""
    forced = {FORCED + name: f"{_MD} {ALONE} --no-profile --schedule {name}" for name in _SCHEDULES}
    return [*_runs(setup, ALONE), *commands(setup, forced, may_end=True)]


def over_peers(setup: Setup) -> list[Contestant]:
    """duo, which also looks up candidates, and llama.cpp's programs with each of many settings."""
    plain = [plain_program(setup, "llama-completion", threads) for threads in (1, 2)]
    return [*_runs(setup, ""), *plain, *speculative(setup, threads=("2",)), *ngrams(setup)]


def beside_loops(setup: Setup) -> list[Contestant]:
    """duo without options, with and without the draft, and with fixed numbers of threads."""
    alone = {TARGET: "", f"{FORCED}-t 1": "-t 1", f"{FORCED}-t 2": "-t 2"}
    pair = {PAIR: _MD, f"{FORCED}async": f"{_MD} --schedule async"}
    texts = {name: f"{ALONE} --no-profile {options}" for name, options in alone.items()}
    found = {name: f"{ALONE} --no-profile {options}" for name, options in pair.items()}
    return [*commands(setup, texts), *commands(setup, found, may_end=True)]


def stating(setup: Setup) -> list[Contestant]:
    """duo with one profile for all texts, and the target alone."""
    options = {PAIR: f"{_MD} {ALONE} -v", FORCED + "off": f"{_MD} {ALONE} --no-profile --schedule off"}
    return commands(setup, options, may_end=True)


def _runs(setup: Setup, options: str) -> list[Contestant]:
    """A first and a fourth run."""
    fourth = duo(setup, FOURTH, f"{_MD} {options}", may_end=True)
    for file in setup.prompt_files[-_N_EARLIER:]:
        setup.write(fourth, file)
    return [duo(setup, FIRST, f"{_MD} {options} --no-profile", may_end=True), fourth]


class Fastest(Comparison):
    """Prompts whose texts do not repeat themselves, at most eight of them."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        alone, files = duo(setup, "", f"{ALONE} --schedule off --no-profile", may_end=True), []
        for file in setup.prompt_files:
            try:
                run = setup.write(alone, file)
            except DuoError as error:  # the text is too short
                note(f"{file.stem}: {error}")
                continue
            share = distinct(run.text)
            note(f"{file.stem}: {100 * share:.0f} % distinct, {run.tokens} tokens")
            if share >= _DISTINCT and (run.tokens or 0) >= setup.n_tokens / 2:
                files.append(file)
        if not files:
            raise DuoError("each text repeats itself or is too short")
        return Comparison.run(self, replace(setup, prompt_files=files[: 8 + _N_EARLIER]))


@dataclass(frozen=True, slots=True)
class Busy(Comparison):
    """Beside `n_loops` programs that compute all the time."""

    n_loops: int = 0

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        for _ in range(self.n_loops):
            setup.stack.enter_context(Child([sys.executable, "-c", _LOOP]))
        return Comparison.run(self, setup)


class Verdicts(Comparison):
    """The gains that duo states at the end of a run, over the ratio of the rates of that run and the target alone."""

    def verdicts(self, results: Results) -> list[Verdict]:
        """How many gains are stated, and how many of these are true."""
        duo, alone = ({s.i_round: s.run for s in results.counting(each)} for each in results.contestants)
        pairs = [(run.figure("stated_gain"), run.tokens_per_s / alone[i].tokens_per_s)
                 for i, run in duo.items() if i in alone]  # fmt: skip
        for gain, real in pairs:
            note(f"stated {gain or 'nothing'}, in truth {real:.2f}")
        stated = [(gain, real) for gain, real in pairs if gain is not None]
        right = sum(abs(gain / real - 1) <= _TRUE for gain, real in stated)
        return [
            verdict("share of the runs that state a gain", len(stated) / max(1, len(pairs)), least=0.8),
            verdict("share of the stated gains within 15 %", right / max(1, len(stated)), least=1.0),
        ]
